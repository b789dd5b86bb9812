"""The OpenAPI document says what the service does: schemathesis makes requests of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from offsetmgr.service.messages import INSTANCE
from tests.service.support import ROOT, running
from tests.service.test_security import TOKENS, identities

HERE = Path(__file__).parent


@pytest.mark.parametrize("secured", [False, pytest.param(True, marks=pytest.mark.chaos)])
def test_valid_requests_are_taken_and_invalid_ones_refused(
    tmp_path: Path, *, secured: bool
) -> None:
    """No 500 either.  A rule that JSON Schema cannot express is in schemathesis_hooks.py.

    In `make chaos`, with identities, there are more requests, and each limit of each value is
    tried.
    """
    given = identities(tmp_path) if secured else {}
    with running(commit__request_timeout_s=0.01, **given) as service:
        service.service.assembly.hub.close()  # event streams end at once
        with service.http() as client:
            instance = client.get("/livez").headers[INSTANCE]
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file"),
            *(str(HERE / "schemathesis.toml"), "run", f"{service.address}/openapi.json"),
            *("--header", f"{INSTANCE}: {instance}"),  # the document cannot say which one it is
            *(("--header", f"Authorization: Bearer {TOKENS['admin']}") if secured else ()),
            *("--phases", "fuzzing,coverage" if secured else "fuzzing"),
            # Without a Kafka these take their time; the code that reads their requests is the same.
            *(() if secured else ("--exclude-path-regex", "/v3/|/lag|/groups", "-n", "1")),
            "--no-color",
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
