"""Databases of offset stores: their connections, and the meaning of their errors."""

from __future__ import annotations

import os
import re
import sqlite3
from math import ceil
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool, SingletonThreadPool

from offsetmgr.answers import Failure
from offsetmgr.codes import STORE_FAILED, STORE_REFUSED, error_info
from offsetmgr.errors import InvalidValueError
from offsetmgr.text import visible

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.engine import ExceptionContext

_LONGEST_S: Final = 10
"""Longest time that a server has to take a connection, or to acknowledge what it was sent."""

_LIBPQ: Final = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "client_encoding": "UTF8",
}
"""Settings of connections to PostgreSQL, unless the URL has others, next to the time-outs.  By its
defaults Linux waits up to two hours for the answer of a server whose machine is gone, and text of a
database without an encoding (SQL_ASCII) comes as bytes."""

_TABLE_PREFIX: Final = "offsetmgr_"

_PSYCOPG: Final = "postgresql+psycopg"

_PASSING: Final = (
    "08",  # the connection failed
    "25006",  # read-only: a fail-over has demoted the server
    "25P",  # an idle transaction was ended
    "26000", "42P05",  # a prepared statement of another session, behind a pooler
    "40",  # deadlock, serialisation
    "53",  # no connections, memory or disk left
    "55006", "55P03",  # an object is in use or locked
    "57",  # shutdown, start-up, cancelled
    "58",  # the system failed
)  # fmt: skip
"""Classes of SQLSTATE, and single ones, that a later try may not meet."""

_LEFT: Final = ("08", "25006", "26000", "42P05", "57P", "58")
"""Those after which a connection is not used again: its server may stay as it is."""

_LOGIN: Final = re.compile(
    r'(password authentication failed|no password supplied|no pg_hba\.conf entry|role "|database "'
    r"|permission denied|Access denied for|Unknown database).*",
)
"""Refusals of a login, in the words of PostgreSQL and MySQL: libpq gives no SQLSTATE of them."""

_SQLITE_PASSING: Final = ("locked", "full", "I/O", "already exists")  # of errors that may pass
_NO_TABLE: Final = ("42P01", "42703")  # no such table, or column
_IS_THERE: Final = ("23505", "42P07", "42701")  # a row, table or column

_engines: Final = WeakSet["Engine"]()
"""Those that drop their connections where these are lost."""


def open_engine(url: str, patience_s: float) -> Engine:
    """Return an engine for ``url``, whose connections wait no longer than ``patience_s``, if any.

    Raises InvalidValueError, and ModuleNotFoundError.
    """
    hint = "give one such as postgresql+psycopg://user@host/database or sqlite:///offsets.db"
    try:
        parsed = make_url(url)
        if "\0" in (parsed.database or ""):
            raise ValueError  # noqa: TRY301 -- as of what cannot be parsed
        if parsed.drivername in {"postgresql", "postgres"}:
            parsed = parsed.set(drivername=_PSYCOPG)
        options: dict[str, Any] = {}
        if parsed.drivername == _PSYCOPG:
            # A pooler such as PgBouncer gives the next transaction another session, which does not
            # have the statements prepared in this one.
            limit_s = min(_LONGEST_S, ceil(patience_s) or _LONGEST_S)
            ours = {**_LIBPQ, "connect_timeout": limit_s, "tcp_user_timeout": limit_s * 1_000}
            given = {name: value for name, value in ours.items() if name not in parsed.query}
            options = {"prepare_threshold": None, **given}
        engine = sa.create_engine(parsed, connect_args=options)
    except ModuleNotFoundError as error:
        if parsed.drivername == _PSYCOPG:  # of our own extra
            raise
        problem = f"needs the package {error.name}"
        raise InvalidValueError("database", parsed.drivername, problem, "install it") from None
    except (exc.ArgumentError, exc.NoSuchModuleError, ValueError):
        # What cannot be parsed may hold a password.
        raise InvalidValueError("database", "***", "is not a URL of a database", hint) from None
    if engine.dialect.name == "mssql":
        raise InvalidValueError("database", "mssql", "has no SELECT ... FOR UPDATE", hint)
    if isinstance(engine.pool, SingletonThreadPool):  # of SQLite without a file
        hint = "give a file, such as sqlite:///offsets.db, or the store memory:"
        raise InvalidValueError("database", url, "is another database in each thread", hint)
    if engine.dialect.name == "sqlite":  # a connection goes on in a file that was deleted
        engine = sa.create_engine(parsed, poolclass=NullPool)
    return engine


def leave_lost_connections(engine: Engine) -> None:
    """Have ``engine`` drop its connections after an error of the server that may stay.

    A demoted server keeps its connections open and refuses every change on them.  In the child of
    a fork they are the parent's: each would read the other's answers.
    """
    if engine not in _engines:
        _engines.add(engine)
        event.listen(engine, "handle_error", _mark_lost)


def _leave_to_parent() -> None:
    for engine in [*_engines]:
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_leave_to_parent)


def _mark_lost(context: ExceptionContext) -> None:
    if sqlstate_of(context.original_exception).startswith(_LEFT):
        context.is_disconnect = True


def sqlstate_of(error: BaseException | None) -> str:
    """Return the SQLSTATE of a driver's error; empty without one."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""


def failure_of(error: exc.SQLAlchemyError) -> Failure:
    """Return the meaning of an error; its text has no values of the statement.

    The SQLSTATE decides.  Without one, as of SQLite or a server that cannot be reached, the class
    of the error does.
    """
    if not isinstance(error, exc.DBAPIError):
        info = error_info(STORE_FAILED if isinstance(error, exc.TimeoutError) else STORE_REFUSED)
        return Failure(info, f"{info.hint}: {visible(str(error), 100)}")
    text, state = visible(str(error.orig), 100), sqlstate_of(error.orig)
    is_ours = _TABLE_PREFIX in (error.statement or "")
    if is_ours and (state in _NO_TABLE or (not state and "no such" in text)):
        advice = f"{text}; create the store's tables: offsetmgr store init"
        return Failure(error_info(STORE_REFUSED), advice)
    login = None if state else _LOGIN.search(str(error.orig))
    if login is not None and isinstance(error, exc.OperationalError):
        advice = f"{visible(login.group(), 100)}; check user, password and database of its URL"
        return Failure(error_info(STORE_REFUSED), f"the database refuses the login: {advice}")
    # Two processes make one row or table, which the second one finds when it tries again.
    is_there = state in _IS_THERE or (not state and isinstance(error, exc.IntegrityError))
    passing = is_ours and is_there
    if state:
        passing |= state.startswith(_PASSING)
    elif isinstance(error.orig, sqlite3.Error):
        passing |= any(word in text for word in _SQLITE_PASSING)
    else:
        passing |= isinstance(error, (exc.OperationalError, exc.InterfaceError))
    info = error_info(STORE_FAILED if passing or error.connection_invalidated else STORE_REFUSED)
    return Failure(info, f"{info.hint}: {text}")
