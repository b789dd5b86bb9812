"""Tokens for OAUTHBEARER that a function returns: the application's, the operator's or AWS's."""

from __future__ import annotations

import importlib
import os
import re
import time
from math import inf
from typing import TYPE_CHECKING, Any, Final, SupportsFloat

from offsetmgr.errors import InvalidValueError
from offsetmgr.extras import install_hint, package_of
from offsetmgr.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

AWS_MSK_IAM: Final = "aws-msk-iam"
"""The name of AWS's own function, which signs with the credentials that botocore finds."""

_PAIR: Final = 2
_TEXT_CHARS: Final = 300
_MSK_BROKER: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?\b")


class TokenFunction:
    """An ``oauth_cb``, which returns a token and when it ends; keeps its last failure."""

    def __init__(self, get_token: Any, name: str = "") -> None:
        """``name`` is shown in errors; without it, the function's own is."""
        self._get_token = get_token
        self._name = name or _name_of(get_token)
        self.failure = ""
        """Its last exception, as text; empty after a success."""

    def __call__(self, config: str | None) -> tuple[Any, ...]:
        """Return a token and its end.  Raises RuntimeError, whatever the function does instead."""
        try:
            answer = _checked(self._get_token(config))
        except BaseException as error:
            self.failure = f"oauth_cb failed: {self._name}: {visible(repr(error), _TEXT_CHARS)}"
            raise RuntimeError(self.failure) from error
        self.failure = ""
        return answer


def token_function(name: str, allowed: Collection[str], kafka: Mapping[str, str]) -> TokenFunction:
    """Return the function that gets tokens for the cluster of ``kafka``, librdkafka's settings.

    ``name`` is ``aws-msk-iam``, or ``module:function``, which must be in ``allowed``.  Raises
    InvalidValueError.
    """
    if name == AWS_MSK_IAM:
        return TokenFunction(_msk_signer(kafka.get("bootstrap.servers", "")), name)
    module, colon, attribute = name.partition(":")
    if not (colon and module and attribute):
        fix = f"give {AWS_MSK_IAM}, or module:function"
        raise InvalidValueError("oauth", name, "does not name a function", fix)
    if name not in allowed:
        fix = f'to let the service run it, set oauth_functions = ["{name}"]'
        raise InvalidValueError("oauth", name, "is not an allowed function", fix)
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- of the operator's module
        problem = f"could not be imported: {visible(repr(error), _TEXT_CHARS)}"
        fix = "correct the name, or install the module where the service runs"
        raise InvalidValueError("oauth", name, problem, fix) from None
    if not callable(function):
        raise InvalidValueError("oauth", name, "is not a function", "give module:function")
    return TokenFunction(function, name)


def _msk_signer(servers: str) -> Callable[[str | None], tuple[str, float]]:
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError as error:
        problem = f"needs the package {package_of(error.name)}"
        raise InvalidValueError("oauth", AWS_MSK_IAM, problem, install_hint(error.name)) from None
    broker = _MSK_BROKER.search(servers)
    region = broker[1] if broker else os.environ.get("AWS_REGION", "")
    region = region or os.environ.get("AWS_DEFAULT_REGION", "")
    if not region:
        problem = f"cannot tell the region of {servers or 'no broker'}"
        fix = "set AWS_REGION in the environment"
        raise InvalidValueError("oauth", AWS_MSK_IAM, problem, fix)

    def get_token(_config: str | None) -> tuple[str, float]:
        token, expires_ms = MSKAuthTokenProvider.generate_auth_token(region)
        return token, expires_ms / 1000

    return get_token


def _checked(answer: object) -> tuple[Any, ...]:
    """Return the answer of a function; librdkafka would not say what is wrong with it."""
    given: tuple[Any, ...] = answer if isinstance(answer, tuple) else (answer,)
    token, end_s = given[:_PAIR] if len(given) >= _PAIR else (None, None)
    if not (isinstance(token, str) and isinstance(end_s, SupportsFloat)):
        kinds = ", ".join(type(each).__name__ for each in given)
        raise TypeError(f"it returned ({kinds}), not (token, time of its end)")
    if not time.time() < float(end_s) < inf:
        raise ValueError(f"its token ends at {end_s}, which is not a second from now on")
    return given


def _name_of(function: Any) -> str:
    module = getattr(function, "__module__", None)
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"
