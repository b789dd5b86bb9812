"""Functions that get tokens: AWS's, and those that an operator allows."""

from __future__ import annotations

import base64
import sys
import time
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from offsetmgr.errors import InvalidValueError
from offsetmgr.kafka.oauth import AWS_MSK_IAM, TokenFunction, token_function

if TYPE_CHECKING:
    from pathlib import Path

MODULE = """
NUMBER = 5
def get_token(config):
    return f"token of {config}", 4e9
"""

REGIONS = {
    "b-1.orders.ab12cd.c2.kafka.eu-west-1.amazonaws.com:9098": "eu-west-1",
    "boot-ab12.c3.kafka-serverless.us-gov-west-1.amazonaws.com:9098": "us-gov-west-1",
    "b-2.orders.ab12cd.c2.kafka.cn-north-1.amazonaws.com.cn:9098": "cn-north-1",
    "kafka.example.org:9098": "sa-east-1",  # of the environment
}


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "sa-east-1")


@pytest.mark.parametrize("servers", list(REGIONS))
def test_aws_signs_for_the_region_of_the_brokers(servers: str) -> None:
    get_token = token_function(AWS_MSK_IAM, (), {"bootstrap.servers": servers})
    token, expires_s = get_token(None)
    signed = base64.urlsafe_b64decode(token + "==").decode()
    assert f"https://kafka.{REGIONS[servers]}.amazonaws.com/" in signed
    assert "kafka-cluster%3AConnect" in signed
    assert 60 < expires_s - time.time() <= 3600


def test_a_missing_region_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    with pytest.raises(InvalidValueError, match=r"region of kafka:9098; set AWS_REGION"):
        token_function(AWS_MSK_IAM, (), {"bootstrap.servers": "kafka:9098"})


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(InvalidValueError, match=r"pip install 'offsetmgr\[msk\]'"):
        token_function(AWS_MSK_IAM, (), {})


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "company_tokens.py").write_text(MODULE)
    (tmp_path / "company_broken.py").write_text("1 / 0")
    (tmp_path / "company_script.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "company_tokens", raising=False)
    return "company_tokens"


def test_an_allowed_function_gets_the_configuration(module: str) -> None:
    name = f"{module}:get_token"
    assert token_function(name, [name], {})("scope=kafka") == ("token of scope=kafka", 4e9)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("aws-msk", "does not name a function"),
        (":get_token", "does not name a function"),
        ("os:system", r'not an allowed function; .* oauth_functions = \["os:system"\]'),
        ("company_tokens:get_tokens", "could not be imported: AttributeError"),
        ("company_absent:get_token", "could not be imported: ModuleNotFoundError"),
        ("company_broken:get_token", "could not be imported: ZeroDivisionError"),
        ("company_script:get_token", "could not be imported: SystemExit"),
        ("company_tokens:NUMBER", "is not a function"),
    ],
)
def test_a_wrong_name_is_refused(module: str, name: str, why: str) -> None:
    allowed = [] if name.startswith("os:") else [name]
    with pytest.raises(InvalidValueError, match=why):
        token_function(name, allowed, {})


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ConnectionError("the vault is sealed"), "the vault is sealed"),
        (None, r"it returned \(NoneType\), not \(token, time of its end\)"),
        (["secret", 4e9], r"it returned \(list\)"),
        (("secret",), r"it returned \(str\)"),
        ((b"secret", 4e9), r"it returned \(bytes, float\)"),
        (("secret", "4e9"), r"it returned \(str, str\)"),
        (("secret", 1_000), "its token ends at 1000, which is not a second from now on"),
        (("secret", float("nan")), "its token ends at nan"),
        (("secret", float("inf")), "its token ends at inf"),
    ],
)
def test_a_function_without_a_token_is_named_with_the_cause(answer: object, why: str) -> None:
    """The kind: an odd answer, of which librdkafka says that no token was set in ten seconds."""
    get_token = TokenFunction(Mock(side_effect=[answer, ("good", 4e9)]), "company:get_token")
    with pytest.raises(RuntimeError, match=f"oauth_cb failed: company:get_token: .*{why}") as c:
        get_token(None)
    assert get_token.failure == str(c.value)
    assert "secret" not in get_token.failure
    assert get_token(None) == ("good", 4e9)
    assert get_token.failure == ""
