"""The files of tokens, as they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.http.files import Tokens

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_token_can_be_moved_to_another_owner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that was refused is read again, as the reason may have gone; it is logged once."""
    files = {name: tmp_path / name for name in ("a", "b")}

    def write(name: str, token: str) -> None:
        files[name].write_text(token)
        files[name].chmod(0o600)

    write("a", "first-token-0123456789")
    write("b", "other-token-0123456789")
    tokens = Tokens({name: (name, str(path)) for name, path in files.items()})
    write("a", "other-token-0123456789")
    for _ in range(3):
        tokens.refresh()
    assert tokens.owner_of(b"other-token-0123456789") == "b"
    write("b", "third-token-01234567890")
    for _ in range(2):
        tokens.refresh()
    assert tokens.owner_of(b"other-token-0123456789") == "a"
    assert tokens.owner_of(b"third-token-01234567890") == "b"
    refusals = [each for each in caplog.messages if each.startswith("token_file_refused")]
    assert len(refusals) == 1
