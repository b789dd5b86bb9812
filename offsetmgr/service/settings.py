"""Settings of the service: TOML < environment < flags, checked before anything is opened.

Every error names the setting, where it came from, its value and the fix.
"""

from __future__ import annotations

import difflib
import re
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from offsetmgr.config import CHOICES, LARGEST, MAY_BE_ZERO, CommitSettings, is_number
from offsetmgr.coordinator.fence.finder import brokers_of
from offsetmgr.coordinator.fence.security import security_of
from offsetmgr.errors import InvalidValueError
from offsetmgr.service.kafka_settings import KafkaSettings, check_kafka, env_keys, flatten
from offsetmgr.service.listen import TcpAddress, UnixAddress, check_listen
from offsetmgr.service.logs import LEVELS

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover -- the same library under its older name
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

if TYPE_CHECKING:
    from collections.abc import Mapping

_T = TypeVar("_T")

ENV_PREFIX: Final = "OFFSETMGR_"
CONFIG_BYTES: Final = 1_048_576
"""A larger file is no configuration but a mistake."""

CONFIG_LINE_DOTS: Final = 2_000
"""In one line, a list of brokers included.  tomllib takes time as the square of a name's parts."""

_NOT_SETTINGS: Final = re.compile(
    # The path of the configuration, the cache of the local Kafka, where `spark reconcile` finds the
    # service, and what Kubernetes adds for a Service whose name begins like ours.
    r"CONFIG|CACHE|SERVICE|PORT|PORT_.+|.+_PORT|.+_PORT_.+|(.+_)?SERVICE_(HOST|PORT)(_.+)?"
)


DEFAULT_LISTEN: Final = TcpAddress("127.0.0.1", 8741)


@dataclass(frozen=True)
class Limits:
    """What the service takes at most; beyond it answers 400, 408, 413 or 429."""

    body_bytes: int = 8 * 1024 * 1024
    """Of one request's body."""
    entries: int = 10_000
    """Partitions in one request."""
    managers: int = 200_000
    clients: int = 1_000
    event_streams: int = 256
    requests_in_flight: int = 1_000
    connections: int = 2_000
    body_timeout_s: float = 10.0
    """For a request's body to arrive."""


@dataclass(frozen=True)
class Settings:
    """Everything the service is told.  Times are seconds."""

    kafka: KafkaSettings
    listen: TcpAddress | UnixAddress = DEFAULT_LISTEN
    log_level: str = "info"
    cluster_name: str = "default"
    """Label of the metrics."""
    lease_s: float = 30.0
    """A client that is silent for longer loses its managers, which commit what they hold."""
    stop_timeout_s: float = 20.0
    """After SIGTERM, how long to go on committing before giving up."""
    fence: bool = False
    """Whether each group is kept for this service: it joins the group as its only member, and a
    service started later takes it over, after which Kafka refuses this one's commits."""
    commit: CommitSettings = field(default_factory=CommitSettings)
    limits: Limits = field(default_factory=Limits)


Found: TypeAlias = "dict[str, tuple[object, str]]"
"""Dotted names with value and source; later sources replace earlier ones."""


def load(config: Path | None, env: Mapping[str, str], flags: Found) -> Settings:
    """Settings from the file ``config``, the environment and the command line's ``flags``.

    Raises InvalidValueError.
    """
    path = config if config is not None else _config_of(env)
    found: Found = {}
    if path is not None:
        found |= from_toml(path)
    found |= from_env(env)
    return check(found | flags)


def check(found: Found) -> Settings:
    """Settings out of ``found``.  Raises InvalidValueError."""
    kafka: Found = {}
    plain: Found = {}
    for name, entry in found.items():
        if name.startswith("kafka."):
            kafka[name.removeprefix("kafka.")] = entry
        else:
            plain[name] = entry
    for name, (value, source) in plain.items():
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, n=1)
            fix = f"did you mean {near[0]}?" if near else f"known: {', '.join(_KNOWN)}"
            raise InvalidValueError(f"{name} ({source})", value, "is an unknown setting", fix)
    values = {name: _convert(name, *entry) for name, entry in plain.items()}
    try:
        commit = _section(CommitSettings, "commit", values)
    except InvalidValueError as error:
        raise _from(error, "commit", found) from None
    top: dict[str, Any] = {name: value for name, value in values.items() if "." not in name}
    settings = Settings(
        kafka=check_kafka(kafka), commit=commit, limits=_section(Limits, "limits", values), **top
    )
    if settings.fence:
        config = settings.kafka.for_librdkafka()
        security_of(config)
        brokers_of(str(config["bootstrap.servers"]))
    return settings


def _section(kind: type[_T], section: str, values: Mapping[str, Any]) -> _T:
    prefix = f"{section}."
    return kind(
        **{n.removeprefix(prefix): value for n, value in values.items() if n.startswith(prefix)}
    )


def _from(error: InvalidValueError, section: str, found: Found) -> InvalidValueError:
    name = f"{section}.{error.field}"
    source = found[name][1] if name in found else "default"
    return InvalidValueError(f"{name} ({source})", error.value, error.problem, error.fix)


def _defaults() -> dict[str, object]:
    known = {each.name: each.default for each in fields(Settings)}
    sections = {"commit": asdict(CommitSettings()), "limits": asdict(Limits())}
    for name in ("kafka", *sections):
        del known[name]
    for name, section in sections.items():
        known |= {f"{name}.{key}": value for key, value in section.items()}
    return known


_KNOWN: Final[Mapping[str, object]] = _defaults()
"""Every setting but Kafka's, with its default, whose type is that of the setting."""


def _convert(name: str, value: object, source: str) -> object:
    """``value`` as the setting's type; the environment gives text, TOML gives types."""
    where = f"{name} ({source})"
    if name == "listen":
        return check_listen(value, where)
    if name == "log_level":
        if not isinstance(value, str) or value.lower() not in LEVELS:
            raise InvalidValueError(where, value, "is no level", f"give one of {', '.join(LEVELS)}")
        return value.lower()
    if name == "cluster_name":
        if not isinstance(value, str) or not value or not value.isprintable():
            raise InvalidValueError(where, value, "is no name", "give printable text")
        return value
    section, _, rest = name.partition(".")
    if section == "commit" and rest in CHOICES:
        return value  # checked with the rest of its section
    if isinstance(_KNOWN[name], bool):
        return _switch(where, value)
    zero = section == "commit" and rest in MAY_BE_ZERO
    return _number(where, value, whole=isinstance(_KNOWN[name], int), zero=zero)


_SWITCHES: Final = {"true": True, "false": False}


def _switch(where: str, value: object) -> bool:
    found = value if isinstance(value, bool) else _SWITCHES.get(str(value).lower())
    if found is None:
        raise InvalidValueError(where, value, "is neither true nor false", "give true or false")
    return found


def _number(where: str, value: object, *, whole: bool, zero: bool) -> float:
    kind = "a whole number" if whole else "a number"
    number: object = value
    if isinstance(value, str):
        try:
            number = int(value) if whole else float(value)
        except ValueError:
            raise InvalidValueError(where, value, f"is not {kind}", f"give {kind}") from None
    if not is_number(number, int if whole else (int, float)):
        raise InvalidValueError(where, value, f"is not {kind}", f"give {kind}")
    if number < 0 or (number == 0 and not zero):
        raise InvalidValueError(where, value, "is too small", f"give {kind} above 0")
    if number > LARGEST:
        raise InvalidValueError(where, value, "is too large", f"give {kind} of at most {LARGEST}")
    return number


def from_toml(path: Path) -> Found:
    """The settings in a file.  Raises InvalidValueError."""
    sections = "give settings in [sections], as deploy/offsetmgr.toml does"
    fix = "give the path of a readable TOML file (--config)"
    try:
        with path.open("rb") as file:
            raw = file.read(CONFIG_BYTES + 1)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise InvalidValueError("config", str(path), problem, fix) from None
    if len(raw) > CONFIG_BYTES:
        raise InvalidValueError("config", str(path), f"has over {CONFIG_BYTES} bytes", fix)
    for number, line in enumerate(raw.split(b"\n"), start=1):
        dots = line.count(b".")
        if dots > CONFIG_LINE_DOTS:
            problem = f"is nested too deeply: line {number} has {dots} dots, more than "
            problem += str(CONFIG_LINE_DOTS)
            raise InvalidValueError("config", str(path), problem, sections)
    try:
        table = dict(flatten(tomllib.loads(raw.decode())))
    except ValueError as error:  # of TOML or of UTF-8
        raise InvalidValueError("config", str(path), f"is not TOML: {error}", fix) from None
    except RecursionError:
        raise InvalidValueError("config", str(path), "is nested too deeply", sections) from None
    return {name: (value, str(path)) for name, value in table.items()}


def from_env(env: Mapping[str, str]) -> Found:
    """The settings in the environment: ``OFFSETMGR_COMMIT__COMMIT_INTERVAL_S`` and so on.

    Raises InvalidValueError for a name that is none of ours.
    """
    kafka = env_keys()
    found: Found = {}
    for variable, value in env.items():
        if not variable.startswith(ENV_PREFIX):
            continue
        name = variable.removeprefix(ENV_PREFIX)
        if name.startswith("KAFKA__"):
            rest = name.removeprefix("KAFKA__")
            found[f"kafka.{kafka.get(rest, rest.lower())}"] = (value, variable)
        elif not _NOT_SETTINGS.fullmatch(name):
            found[name.lower().replace("__", ".")] = (value, variable)
    return found


def _config_of(env: Mapping[str, str]) -> Path | None:
    path = env.get(f"{ENV_PREFIX}CONFIG", "")
    return Path(path) if path else None
