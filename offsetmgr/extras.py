"""The extra that installs each optional package, for errors where one is missing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_EXTRAS: Final = {
    "aws_msk_iam_sasl_signer": "msk",
    "confluent_kafka": "kafka",
    "lmdb": "streams",
    "msgspec": "streams",
    "pandas": "spark",
    "psycopg": "sql",
    "pyarrow": "spark",
    "pykka": "kafka",
    "pyspark": "spark",
    "sqlalchemy": "sql",
}
"""By the module that is imported; all others are of ``server``."""

OURS: Final = frozenset({"actors", "offsetmgr"})
"""Packages of the product: a missing module of theirs is a fault, not an extra."""


def install_hint(module: str | None) -> str:
    """Return the command that installs ``module`` with its extra."""
    return f"pip install 'offsetmgr[{_EXTRAS.get(package_of(module), 'server')}]'"


def package_of(module: str | None) -> str:
    """Return the package of a module that could not be imported."""
    return (module or "").partition(".")[0]


@contextmanager
def naming_extra(name: str) -> Iterator[None]:
    """Name the extra that ``name`` needs, in the ModuleNotFoundError of a missing package."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = package_of(error.name)
        if package in OURS:
            raise
        text = f"{name} needs the package {package}: {install_hint(package)}"
        raise ModuleNotFoundError(text, name=error.name) from error
