"""The files of a checkpoint: on this machine, in an object store, or where a session keeps them."""

from __future__ import annotations

import re
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote

from offsetmgr.errors import InvalidValueError
from offsetmgr.text import masked_url, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_NO_HOST: Final = re.compile(r"^([^/]+:)/(?!/)")
"""The beginning of a URL such as hdfs:/jobs, which Hadoop takes for hdfs:///jobs."""
_FILE: Final = re.compile(r"file:(//[^/]*)?")
_MOST_BYTES: Final = 64 * 1024**2
"""Largest file that is read without a session: offsets of a million partitions take half of it."""
_NO_FILE: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class LocalFiles:
    """Files on this machine; names are relative to the folder, such as ``offsets/7``."""

    def __init__(self, location: str) -> None:
        """``location`` is a path or a ``file:`` URL.  Raises InvalidValueError."""
        self.location = location
        # As Hadoop, a "#" or "?" is of the name; so is a "%", unless only the decoded path exists.
        is_url = bool(_scheme(location))
        path = Path((_FILE.sub("", location, count=1) or "/") if is_url else location)
        is_encoded = is_url and "%" in location and not path.exists()
        self._root = Path(unquote(str(path))) if is_encoded else path

    def read(self, name: str) -> str | None:
        """Return the text of a file; None if it does not exist."""
        try:
            with (self._root / name).open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except _NO_FILE:
            return None
        return _decoded(data, f"{self.location}/{name}")

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if it does not exist."""
        try:
            return [path.name for path in (self._root / folder).iterdir()]
        except _NO_FILE:
            return []

    def write(self, name: str, text: str) -> None:
        """Replace a file; a reader finds the old text, the new one or, for a moment, none."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.write_text(text)
        # Hadoop's checksum of the old text.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        new.replace(path)

    def remove(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)


class UrlFiles:
    """Files below a URL that fsspec reads: ``s3:``, ``gs:``, ``abfss:``, ``hdfs:`` and so on.

    Logins, endpoints and proxies are taken from where the library of the file system takes them,
    such as ``AWS_PROFILE`` and ``~/.aws`` for s3fs.  Any method but the constructor raises OSError.
    """

    def __init__(self, location: str) -> None:
        """Raises InvalidValueError if a package is missing, or nothing reads such a URL."""
        self.location = masked_url(location)
        try:
            import fsspec.core  # noqa: PLC0415 -- of an extra

            url = _NO_HOST.sub(r"\1///", location)
            self._system, root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            hint = f"pip install 'offsetmgr[follow]' and the file system's package ({error})"
            problem = "needs a package that is missing"
            raise InvalidValueError("checkpoint", self.location, problem, hint) from None
        except Exception as error:  # noqa: BLE001 -- of whichever library reads it
            hint = (
                "give a path, or a URL that fsspec reads, such as s3://bucket/path; in a driver, "
                "spark= with the session that reads it"
            )
            problem = f"cannot be opened ({type(error).__name__}: {error})"
            raise InvalidValueError("checkpoint", self.location, problem, hint) from None
        self._root = str(root).rstrip("/")

    def read(self, name: str) -> str | None:
        path = f"{self._root}/{name}"
        with _failing(self.location, name):
            try:
                data = bytes(self._system.cat_file(path, start=0, end=_MOST_BYTES + 1))
            except _NO_FILE:
                return None
            except Exception:
                # Object stores refuse the range of an object that is empty.
                info = self._system.info(path)
                if info["type"] != "file" or info["size"] != 0:
                    raise
                data = b""
        return _decoded(data, f"{self.location}/{name}")

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, without the objects that mark folders in object stores."""
        root = f"{self._root}/{folder}".rstrip("/")
        with _failing(self.location, folder):
            self._system.invalidate_cache()
            try:
                paths = [str(path).rstrip("/") for path in self._system.ls(root, detail=False)]
            except _NO_FILE:
                return []
            paths = [path for path in paths if path != root and not path.endswith("_$folder$")]
            return [path.rpartition("/")[2] for path in paths]

    def write(self, name: str, text: str) -> None:
        with _failing(self.location, name):
            self._system.pipe_file(f"{self._root}/{name}", text.encode())

    def remove(self, name: str) -> None:
        with _failing(self.location, name), suppress(FileNotFoundError):
            self._system.rm_file(f"{self._root}/{name}")


class SessionFiles:
    """Files as the session reaches them, on any file system; raises OSError as ``UrlFiles``."""

    def __init__(self, spark: SparkSession, jvm: Any, location: str) -> None:
        self.location = location
        self._jvm = jvm
        # As for Spark's own checkpoints: what spark.conf sets counts, such as a key of a store.
        self._settings = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 -- PySpark offers no files

    def read(self, name: str) -> str | None:
        text: str | None = None
        with (
            self._opened(name, if_there=True) as (path, system),
            closing(system.open(path)) as stream,
        ):
            text = bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
        return text  # noqa: RET504 -- None if the block has ended early

    def names(self, folder: str) -> list[str]:
        found: list[str] = []
        with self._opened(folder, if_there=True) as (path, system):
            found = [str(status.getPath().getName()) for status in system.listStatus(path)]
        return found  # noqa: RET504 -- the same

    def write(self, name: str, text: str) -> None:
        with self._opened(name) as (path, system):
            new = self._jvm.org.apache.hadoop.fs.Path(path.getParent(), f".{path.getName()}.new")
            with closing(system.create(new, True)) as stream:  # noqa: FBT003 -- Hadoop's
                stream.write(bytearray(text.encode()))
            self.remove(name)  # HDFS and object stores do not rename to a name that exists
            if not system.rename(new, path):
                raise OSError(f"{new} cannot be renamed")

    def remove(self, name: str) -> None:
        with self._opened(name) as (path, system):
            system.delete(path, False)  # noqa: FBT003 -- the same

    @contextmanager
    def _opened(self, name: str, *, if_there: bool = False) -> Iterator[tuple[Any, Any]]:
        """With ``if_there`` the block ends without an error if nothing is there, or any more."""
        with _failing(self.location, name):
            path = self._jvm.org.apache.hadoop.fs.Path(f"{self.location}/{name}")
            system = path.getFileSystem(self._settings)
            try:
                yield path, system
            except Exception:
                # It may be there, such as a folder in the place of a file.
                if not if_there or system.exists(path):
                    raise


Files: TypeAlias = LocalFiles | UrlFiles | SessionFiles


def open_files(location: object, spark: SparkSession | None) -> Files:
    """Return the files of a checkpoint, read by the session if there is one.

    Sessions of Spark Connect read no files.  Raises InvalidValueError for a location that is not
    text, for a session that was stopped, and as ``UrlFiles``.
    """
    path = check_location(location)
    check_session(spark)
    jvm = getattr(spark, "_jvm", None)
    if spark is None or jvm is None:
        return LocalFiles(path) if _scheme(path) in {"", "file"} else UrlFiles(path)
    return SessionFiles(spark, jvm, path)


def check_location(location: object) -> str:
    if not isinstance(location, str) or not location or "\0" in location:
        hint = "give the query's checkpointLocation as text"
        raise InvalidValueError("checkpoint", location, "is not a path", hint)
    return location


def is_stopped(spark: Any) -> bool:
    """Return True if the session was stopped, or its JVM has ended."""
    context = getattr(spark, "_sc", None)
    if context is None:
        return bool(getattr(spark, "is_stopped", False))  # of Spark Connect
    if context._jsc is None:  # noqa: SLF001 -- PySpark does not say it otherwise
        return True
    process = getattr(getattr(context, "_gateway", None), "proc", None)
    return isinstance(process, Popen) and process.poll() is not None


def check_session(spark: object) -> None:
    if is_stopped(spark):
        raise InvalidValueError("spark", spark, "is stopped", "give a session that runs")


def java_text(error: Exception) -> str:
    """Return the sentence in an error of py4j or PySpark, without its page of Java."""
    first, _, more = str(error).strip().partition("\n")
    text = more.removeprefix(": ") if first.startswith("An error occurred") else first
    return visible(text.partition("\n")[0])


@contextmanager
def _failing(location: str, name: str) -> Iterator[None]:
    """Raise OSError for whatever a file system raises that is not ours."""
    try:
        yield
    except Exception as error:
        text = f"{location}/{name} failed: {type(error).__name__}: {java_text(error)}"
        raise OSError(text) from error


def _decoded(data: bytes, place: str) -> str:
    """Return the text of a file.  Raises OSError for what Spark does not write."""
    if len(data) > _MOST_BYTES:  # such as of a link to a device, which has no end
        raise OSError(f"{place} has more than {_MOST_BYTES:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise OSError(f"{place} is damaged: {error}") from None


def _scheme(location: str) -> str:
    found = _SCHEME.match(location)
    return "" if found is None else found[1].lower()
