"""A real PostgreSQL for the tests, in a temporary folder."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
import pytest

if TYPE_CHECKING:
    from typing_extensions import Self

USER: Final = "postgres"
_WAIT_S: Final = 120.0
_PLACES: Final = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin")


class Postgres:
    """A server on a Unix socket and a free loopback port, without a password."""

    def __init__(self, *, durable: bool = False) -> None:
        """With ``durable`` each commit waits for the disk, as it does in production."""
        self._durable = durable

    def __enter__(self) -> Self:
        binaries = _binaries()
        # Not below pytest's own folder, which root alone may enter.
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self.folder.chmod(0o755)  # for clients that are not the user of the server
        self._as_user = _as_user(self.folder)
        try:
            self._start(binaries)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def _start(self, binaries: Path) -> None:
        data = self.folder / "data"
        command = [*self._as_user, str(binaries / "initdb"), "-D", str(data), "-U", USER]
        options = ["--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"]
        made = subprocess.run(
            [*command, *options], capture_output=True, text=True, cwd="/", check=False
        )
        if made.returncode != 0:
            pytest.fail(f"initdb failed: {made.stderr}")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "fsync": "on" if self._durable else "off",
        }
        given = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
        log = self.folder / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*self._as_user, str(binaries / "postgres"), "-D", str(data), *given],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
            )
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                self.connect().close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self._stop()
                    pytest.fail(f"PostgreSQL did not start: {log.read_text()}")
                time.sleep(0.05)
            else:
                return

    def __exit__(self, *_: object) -> None:
        self._stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)  # without a last checkpoint
            self._process.wait(_WAIT_S)

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """Connect past the product."""
        place = {"host": str(self.folder), "port": self.port, "user": USER, "dbname": database}
        return psycopg.connect(**place, autocommit=True)

    def create(self, database: str, encoding: str = "UTF8") -> str:
        """Create a database; return its URL."""
        options = f"ENCODING '{encoding}' TEMPLATE template0"
        with self.connect() as connection:
            connection.execute(f'CREATE DATABASE "{database}" {options}'.encode())
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/{database}"

    def environment(self) -> dict[str, str]:
        """Return what makes this the server of a URL without a host."""
        return {"PGHOST": str(self.folder), "PGPORT": str(self.port), "PGUSER": USER}


class PgBouncer:
    """A pooler before ``server`` that gives each transaction any of two sessions."""

    def __init__(self, server: Postgres) -> None:
        self._server = server

    def __enter__(self) -> Self:
        program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        if not Path(program).exists():
            pytest.fail("the tests of offset stores need pgbouncer: run scripts/ensure-packages.sh")
        folder = Path(tempfile.mkdtemp(prefix="bouncer-"))
        self._folder = folder
        as_user = _as_user(folder)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        file = folder / "pgbouncer.ini"
        file.write_text(
            f"[databases]\n* = host=127.0.0.1 port={self._server.port} user={USER}\n"
            f"[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={self.port}\nauth_type=any\n"
            "pool_mode=transaction\ndefault_pool_size=2\nunix_socket_dir=\n"
        )
        file.chmod(0o644)
        self._process = subprocess.Popen(
            [*as_user, program, str(file)], cwd="/", stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + _WAIT_S
        while socket.socket().connect_ex(("127.0.0.1", self.port)) != 0:
            assert self._process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(_WAIT_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def url_of(self, database: str) -> str:
        """Return the URL of a database of the server through this pooler."""
        return database.replace(f":{self._server.port}/", f":{self.port}/")


def _binaries() -> Path:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    places = [place for each in _PLACES for place in sorted(Path("/").glob(each.lstrip("/")))]
    if not places:
        pytest.fail(
            "the tests of offset stores need PostgreSQL's server: run scripts/ensure-packages.sh, "
            "or apt-get install postgresql"
        )
    return places[-1]


def _as_user(folder: Path) -> list[str]:
    """Return the start of a command that runs as a user whom PostgreSQL accepts; root it is not."""
    if os.geteuid() != 0:
        return []
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        pytest.fail(f"PostgreSQL does not run as root, and there is no user {USER}: create one")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={USER}", f"--regid={user.pw_gid}", "--init-groups"]
