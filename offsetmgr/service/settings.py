"""Settings of the service: TOML < environment < flags, checked before anything is opened.

Every error names the setting, where it came from, its value and the fix, and shows no secret.

Of librdkafka's settings only those on a list may be given, since some load code
(``plugin.library.paths``, ``ssl.engine.location``) or run commands (``sasl.kerberos.kinit.cmd``).
Likewise, ``kafka.oauth`` may name only the functions of ``oauth_functions``.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping  # noqa: TC003 -- a type of a setting
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Meta

from offsetmgr.admin.service import ServiceReader
from offsetmgr.config import CommitSettings
from offsetmgr.errors import InvalidValueError, OffsetManagerError
from offsetmgr.http.address import Address
from offsetmgr.http.errors import MissingError
from offsetmgr.http.files import Tls
from offsetmgr.kafka.errors import known, tried
from offsetmgr.kafka.oauth import token_function
from offsetmgr.service.errors import explained
from offsetmgr.spark.follow import Follow
from offsetmgr.text import MASK, SECRET_NAME, encodable, masked_url

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover -- the same library under its older name
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_T = TypeVar("_T")

Found: TypeAlias = "dict[str, tuple[object, str]]"
"""Dotted names with value and source; later sources replace earlier ones."""

ENV_PREFIX: Final = "OFFSETMGR_"
KAFKA: Final = "kafka"
"""The ``store`` that keeps groups in Kafka itself."""

_NOT_SETTINGS: Final = re.compile(
    # The path of the configuration, the cache of the local Kafka, how commands find a service and
    # log in to it, and what Kubernetes adds for a Service whose name begins like ours.
    r"CONFIG|CACHE|SERVICE|(TOKEN|CA|CERT|KEY)_FILE|PORT|PORT_.+|.+_PORT|.+_PORT_.+|(.+_)?SERVICE_(HOST|PORT)(_.+)?"
)

SECRET: Final = frozenset(
    {
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.client.secret",
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
    }
)
"""Each may come from a file, as ``<key>_file``."""

FILE_SUFFIX: Final = "_file"

FILE_BYTES: Final = 1024 * 1024
"""Of a file with settings or a secret; what has no end, such as a device, would take all memory."""

OAUTH: Final = "oauth"
"""The setting of Kafka's that names a function which gets tokens; it is not librdkafka's."""

_OAUTH_FUNCTIONS: Final = "oauth_functions"

ALLOWED: Final = SECRET | {
    "api.version.request.timeout.ms",
    "bootstrap.servers",
    "broker.address.family",
    "broker.address.ttl",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "connections.max.idle.ms",
    "debug",
    "enable.ssl.certificate.verification",
    "https.ca.location",
    "https.ca.pem",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "sasl.kerberos.keytab",
    "sasl.kerberos.principal",
    "sasl.kerberos.service.name",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.oauthbearer.assertion.algorithm",
    "sasl.oauthbearer.assertion.claim.aud",
    "sasl.oauthbearer.assertion.claim.exp.seconds",
    "sasl.oauthbearer.assertion.claim.iss",
    "sasl.oauthbearer.assertion.claim.jti.include",
    "sasl.oauthbearer.assertion.claim.nbf.seconds",
    "sasl.oauthbearer.assertion.claim.sub",
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.jwt.template.file",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.grant.type",
    "sasl.oauthbearer.metadata.authentication.type",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.sub.claim.name",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.username",
    "security.protocol",
    "socket.connection.setup.timeout.ms",
    "socket.keepalive.enable",
    "socket.max.fails",
    "socket.nagle.disable",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.cipher.suites",
    "ssl.crl.location",
    "ssl.curves.list",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.sigalgs.list",
    "topic.metadata.refresh.interval.ms",
}

_ADDRESSES: Final = {
    "bootstrap.servers": "name and password are sasl.username and sasl.password_file",
    "sasl.oauthbearer.token.endpoint.url": "name and password are sasl.oauthbearer.client.id and "
    "sasl.oauthbearer.client.secret_file",
}
"""Settings that hold addresses, and where a login for them is given."""

_IDENTITY_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

Seconds = Annotated[float, Meta(gt=0, le=366 * 86_400)]
Limit = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Pattern = Annotated[str, Meta(min_length=1, max_length=255)]
Patterns = Annotated[list[Pattern], Meta(max_length=1_000)]


@dataclass(frozen=True)
class KafkaSettings:
    """Settings for librdkafka, by key; its repr shows none of their values."""

    values: Mapping[str, str] = field(repr=False)
    oauth_cb: Any = field(default=None, repr=False)
    """The TokenFunction of ``oauth``, or None."""

    def for_librdkafka(self) -> dict[str, object]:
        """Return all settings, secrets as they are."""
        settings: dict[str, object] = dict(self.values)
        if settings.pop(OAUTH, None) is not None:
            settings["oauth_cb"] = self.oauth_cb
        return settings

    def masked(self) -> dict[str, str]:
        """Return all settings as they may be shown."""
        return {key: _masked(key, value) for key, value in self.values.items()}


@dataclass(frozen=True)
class Limits:
    """Beyond these the service answers 429."""

    managers: Limit = 200_000
    clients: Limit = 1_000
    event_streams: Limit = 256
    fenced_groups: Limit = 200


@dataclass(frozen=True)
class Watch:
    """Groups whose lag is shown in the metrics and by Burrow's rules."""

    groups: str = ""
    """Regular expression of whole names, such as ``.*``; without it none are watched."""
    interval_s: Annotated[float, Meta(ge=1, le=3_600)] = 30.0
    allowed_lag: Annotated[int, Meta(ge=0)] = 0
    min_distance_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    other_names: bool = False

    def __post_init__(self) -> None:
        try:
            re.compile(self.groups)
        except (re.error, OverflowError, RecursionError) as error:
            problem = f"is not a regular expression ({error})"
            fix = 'give one of group names, such as "orders-.*|clicks"'
            raise InvalidValueError("groups", self.groups, problem, fix) from None


@dataclass(frozen=True)
class Identity:
    """Somebody who may ask the service, and the names, as patterns with ``*``, they may ask for."""

    groups: Patterns
    topics: Patterns
    clusters: Patterns = field(default_factory=lambda: ["*"])
    read_only: bool = False
    token_file: str = ""
    certificate: str = ""
    """A name in the client's certificate."""

    def __post_init__(self) -> None:
        if not self.token_file and not self.certificate:
            fix = "give a token_file, or a certificate"
            raise InvalidValueError("token_file", self.token_file, "is empty", fix)


@dataclass(frozen=True)
class Settings:
    """All settings of the service; ``deploy/offsetmgr.toml`` explains each.  Times are seconds."""

    kafka: KafkaSettings
    listen: str = "127.0.0.1:8741"
    hosts: str = ""
    """Names that a Host header may carry, separated by commas, in addition to those of loopback."""
    open_metrics: bool = False
    audit_log: str = ""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    cluster_name: Annotated[str, Meta(min_length=1, max_length=255)] = "default"
    lease_s: Seconds = 30.0
    stop_timeout_s: Seconds = 20.0
    exit_after_last_client_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    """0 runs on without clients."""
    store: str = field(default=KAFKA, repr=False)
    """``kafka``, or the URL of the database that keeps the groups instead."""
    fence: bool = False
    fence_session_timeout_s: Annotated[float, Meta(ge=6, le=300)] = 45.0
    commit: CommitSettings = field(default_factory=CommitSettings)
    limits: Limits = field(default_factory=Limits)
    watch: Watch = field(default_factory=Watch)
    streams: Annotated[list[str], Meta(max_length=100)] = field(default_factory=list)
    """Addresses of views, as ``offsetmgr view serve`` prints them, for ``GET /v1/streams``."""
    oauth_functions: Annotated[list[str], Meta(max_length=100)] = field(default_factory=list)
    """Functions, as ``module:function``, that ``kafka.oauth`` may name: their code is run."""
    tls: Tls = field(default_factory=Tls)
    identities: dict[str, Identity] = field(default_factory=dict)
    follow: dict[str, Follow] = field(default_factory=dict)
    """Checkpoints of jobs that do not commit."""

    def __post_init__(self) -> None:
        self._check_listening()
        for name, identity in self.identities.items():
            if not _IDENTITY_NAME.fullmatch(name):
                fix = "write [identities.NAME] with a name of letters, digits, '.', '_' and '-'"
                raise InvalidValueError("identities", name, "is not an identity's name", fix)
            if identity.certificate and not self.tls.client_ca:
                fix = "set tls.client_ca, the authority of the clients' certificates"
                where, given = f"identities.{name}.certificate", identity.certificate
                raise InvalidValueError(where, given, "cannot be checked", fix)
        for url in self.streams:
            try:
                ServiceReader(url)
            except InvalidValueError as error:
                raise InvalidValueError("streams", url, error.problem, error.hint) from None
        if self.database is None:
            return
        if "://" not in self.store:
            fix = f"give {KAFKA}, or a URL such as postgresql+psycopg://user@host/database"
            raise InvalidValueError("store", MASK, "is not a URL", fix)
        if self.fence:
            fix = "remove it: a database always refuses a service that was replaced"
            raise InvalidValueError("fence", self.fence, "is for groups in Kafka", fix)

    def _check_listening(self) -> None:
        """Raise InvalidValueError where others than this machine's users could ask unchecked."""
        address = self.address
        if address.path and address.tls:
            fix = "remove [tls]: the socket is for its owner alone, and nobody can listen in"
            raise InvalidValueError("tls.certificate", self.tls.certificate, "is for TCP", fix)
        missing = []
        if not address.tls:
            missing.append("TLS (set tls.certificate and tls.key)")
        if not self.identities:
            missing.append("authentication (add an [identities.NAME] with a token_file)")
        address.check_reach(missing)

    @property
    def address(self) -> Address:
        return Address.parse(self.listen)._replace(tls=bool(self.tls.certificate))

    @property
    def database(self) -> str | None:
        """The URL of the database that keeps the groups; None where Kafka does."""
        return None if self.store == KAFKA else self.store


def by_name(settings: Settings) -> dict[str, object]:
    """Return every setting by its dotted name, secrets masked."""
    found = unmasked(settings)
    found |= {f"kafka.{key}": value for key, value in settings.kafka.masked().items()}
    for name, each in settings.follow.items():
        found[f"follow.{name}.checkpoint"] = _masked("checkpoint", each.checkpoint)
    found["store"] = _masked("store", settings.store)
    return found


def unmasked(settings: Settings) -> dict[str, object]:
    """Return every setting by its dotted name, with secrets as they are."""
    tables = {
        "identities": {name: _as_table(each) for name, each in settings.identities.items()},
        "follow": {name: _as_table(each) for name, each in settings.follow.items()},
    }
    return dict(_flatten(_as_table(settings) | tables))


def _as_table(settings: object) -> dict[str, object]:
    if isinstance(settings, KafkaSettings):
        return dict(settings.values)
    # Not by msgspec.to_builtins, which leaves out the default values of a converted dataclass.
    values = ((each.name, getattr(settings, each.name)) for each in fields(cast("Any", settings)))
    return {name: _as_table(v) if is_dataclass(v) else msgspec.to_builtins(v) for name, v in values}


def defaults() -> dict[str, object]:
    """Return every setting but Kafka's and identities by its dotted name, with its default."""
    return by_name(Settings(KafkaSettings({})))


@contextmanager
def _hiding_secrets() -> Iterator[None]:
    """Mask the value of an InvalidValueError where it is a secret, or has one in it."""
    try:
        yield
    except InvalidValueError as error:
        value = _masked(error.field.partition(" (")[0], str(error.value))
        if value == str(error.value):
            raise
        raise InvalidValueError(error.field, value, error.problem, error.hint) from None


@_hiding_secrets()
def load(
    config: Path | None, env: Mapping[str, str], flags: Found, cluster: str | None = None
) -> Settings:
    """Return the settings from the file ``config``, the environment and the command line.

    With ``cluster``, Kafka's are those of ``[clusters.NAME]`` in the file, and not those of
    ``[kafka]`` or of the environment.  Raises InvalidValueError, which shows no secret.
    """
    path = config or env.get(f"{ENV_PREFIX}CONFIG")
    found = from_toml(Path(path)) if path else {}
    clusters = _take_tables(found, "clusters")
    found |= _from_env(env)
    if cluster is not None:
        found = {each: found[each] for each in found if not each.startswith("kafka.")}
        values = named_cluster(clusters, cluster, "--cluster")
        found |= {
            f"kafka.{key}": (value, f"[clusters.{cluster}] in {source}")
            for key, (value, source) in values.items()
        }
    return _check(found | flags)


def load_clusters(config: Path | None, env: Mapping[str, str]) -> dict[str, KafkaSettings]:
    """Return the clusters in the file ``config``, else in ``$OFFSETMGR_CONFIG``.

    Raises InvalidValueError, which shows no secret.
    """
    return {name: known(each) for name, each in read_clusters(config, env).items()}


@_hiding_secrets()
def read_clusters(
    config: Path | None, env: Mapping[str, str]
) -> dict[str, KafkaSettings | OffsetManagerError]:
    """Return the clusters as ``load_clusters``, or the error of one with a wrong setting."""
    path = config or env.get(f"{ENV_PREFIX}CONFIG")
    if path is None:
        raise MissingError("--config", "give a TOML file with [clusters.NAME] in it")
    found = from_toml(Path(path))
    clusters = _take_tables(found, "clusters")
    allowed = _as_list(found.get(_OAUTH_FUNCTIONS, (None, ""))[0])
    check = _hiding_secrets()(_check_kafka)
    return {name: tried(check, clusters[name], f"clusters.{name}", allowed) for name in clusters}


def _take_tables(found: Found, kind: str, keys: str = ".*") -> dict[str, Found]:
    """Take the tables ``[kind.NAME]`` out of the settings.

    NAME may have a dot where ``keys``, the pattern of their keys, tells what is behind it.
    """
    parts = re.compile(rf"(.*?)\.({keys})", re.DOTALL)
    tables: dict[str, Found] = {}
    for name in [each for each in found if each.startswith(f"{kind}.")]:
        rest = name.removeprefix(f"{kind}.")
        match = parts.fullmatch(rest)
        table, key = match.group(1, 2) if match else rest.partition(".")[::2]
        tables.setdefault(table, {})[key] = found.pop(name)
    return tables


def named_cluster(clusters: Mapping[str, _T], name: str, option: str) -> _T:
    """Return the cluster ``name``, the value of ``option``.  Raises InvalidValueError."""
    if name not in clusters:
        names = ", ".join(clusters)
        fix = f"give one of {names}" if names else "add [clusters.NAME] to --config"
        raise InvalidValueError(option, name, "is not in the configuration file", fix)
    return clusters[name]


def from_toml(path: Path) -> Found:
    """Return the settings in a file.  Raises InvalidValueError."""
    text = _read(path, "config")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        fix = "give the path of a readable TOML file (--config)"
        raise InvalidValueError("config", str(path), f"is not TOML: {error}", fix) from None
    identities = table.get("identities")
    for name, identity in identities.items() if isinstance(identities, dict) else ():
        if identity == {}:  # else it would vanish, and authentication with it
            raise MissingError(f"identities.{name}.groups", "say what this identity may ask for")
    return {name: (value, str(path)) for name, value in _flatten(table)}


def _flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    # Unquoted TOML keys make tables of ``bootstrap.servers``.
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _read(path: Path, setting: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES + 1)
        if len(data) <= FILE_BYTES:
            return data.decode("utf-8-sig")
        problem = f"has more than {FILE_BYTES} bytes"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except UnicodeDecodeError:
        problem = "is not UTF-8 text"
    except ValueError:  # it has a NUL
        problem = "is not a path"
    raise InvalidValueError(setting, str(path), problem, "give a readable text file")


def _from_env(env: Mapping[str, str]) -> Found:
    kafka_keys = [*ALLOWED, *(key + FILE_SUFFIX for key in SECRET)]
    by_variable = {key.replace(".", "_").upper(): key for key in kafka_keys}
    found: Found = {}
    for variable, value in env.items():
        name = variable.removeprefix(ENV_PREFIX)
        if name == variable or _NOT_SETTINGS.fullmatch(name):
            continue
        section, _, rest = name.partition("__")
        if section == "KAFKA":
            found[f"kafka.{by_variable.get(rest, rest.lower())}"] = (value, variable)
        else:
            found[name.lower().replace("__", ".")] = (value, variable)
    return found


def _check(found: Found) -> Settings:
    for name, (value, source) in found.items():
        if isinstance(value, str) and ("\0" in value or encodable(value) != value):
            problem = "holds a NUL, or bytes that are not UTF-8"
            raise InvalidValueError(f"{name} ({source})", MASK, problem, "give plain text")
    known = defaults()
    kafka: Found = {}
    values: dict[str, Any] = {
        "identities": _take(found, "identities", Identity),
        "follow": _take(found, "follow", Follow),
    }
    for name, (value, source) in found.items():
        section, _, key = name.rpartition(".")
        if name.startswith("kafka."):
            kafka[name.removeprefix("kafka.")] = (value, source)
        elif name in known:
            (values.setdefault(section, {}) if section else values)[key] = value
        else:
            raise _unknown(f"{name} ({source})", name, known)
    if isinstance(values.get("log_level"), str):
        values["log_level"] = values["log_level"].lower()
    for name in ("streams", _OAUTH_FUNCTIONS):
        if name in values:
            values[name] = _as_list(values[name])
    values["kafka"] = _check_kafka(kafka, "kafka", values.get(_OAUTH_FUNCTIONS))

    def with_source(path: str) -> str:
        name = path.removeprefix(".")
        return f"{name} ({found[name][1] if name in found else 'default'})"

    return _converted(values, Settings, with_source)


def _converted(values: dict[str, Any], kind: type[_T], name: Callable[[str], str]) -> _T:
    """Return ``values`` as ``kind``.  Raises InvalidValueError; ``name`` as of ``explained``."""
    try:
        # Not strictly: the environment gives all values as text.
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise explained(error, kind, values, name) from None


def _take(found: Found, kind: str, type_: type[_T]) -> dict[str, _T]:
    """Take the tables ``[kind.NAME]`` out of the settings; return them by name."""
    known = [each.name for each in fields(cast("Any", type_))]
    taken = {}
    for name, table in _take_tables(found, kind, rf"(?:{'|'.join(known)})(?:\..*)?").items():
        values: dict[str, Any] = {}
        for key, (value, source) in table.items():
            field_name, dot, entry = key.partition(".")
            if field_name not in known:
                raise _unknown(f"{kind}.{name}.{key} ({source})", key, known)
            if dot:
                values.setdefault(field_name, {})[entry] = value
            else:
                values[field_name] = value
        taken[name] = _converted(values, type_, partial(str.__add__, f"{kind}.{name}"))
    return taken


def _as_list(value: object) -> object:
    if not isinstance(value, str):
        return value
    return [name.strip() for name in value.split(",") if name.strip()]


def _check_kafka(values: Found, section: str, allowed: object) -> KafkaSettings:
    """Return the settings of ``section``; ``allowed`` are the functions it may name."""
    checked: dict[str, str] = {}
    for key, (value, source) in values.items():
        where = f"{section}.{key} ({source})"
        secret = key.removesuffix(FILE_SUFFIX)
        if secret != key and secret in SECRET:
            if secret in values:
                problem = f"is given as well as {secret}"
                raise InvalidValueError(where, value, problem, "give one of the two")
            checked[secret] = _read_secret(value, where)
        elif key in ALLOWED or key == OAUTH:
            checked[key] = _kafka_text(key, value, where)
        else:
            fix = _did_you_mean(key, ALLOWED) or "remove it; some settings would load code"
            has_dot = section != KAFKA and key.partition(".")[2] in ALLOWED
            fix = "give the cluster a name without a dot" if has_dot else fix
            problem = "is not a setting that may be given here"
            raise InvalidValueError(where, MASK, problem, fix)
    if not checked.get("bootstrap.servers", "").strip():
        fix = f"give --bootstrap-servers host:port, or bootstrap.servers in the [{section}] table"
        raise MissingError(f"{section}.bootstrap.servers", fix)
    if OAUTH not in checked:
        return KafkaSettings(checked)
    where = f"{section}.{OAUTH} ({values[OAUTH][1]})"
    mechanism = checked.get("sasl.mechanism") or checked.get("sasl.mechanisms")
    if mechanism is None:
        checked["sasl.mechanism"] = "OAUTHBEARER"
    elif mechanism != "OAUTHBEARER":
        fix = "give OAUTHBEARER as sasl.mechanism, or none"
        raise InvalidValueError(where, checked[OAUTH], f"is not for {mechanism}", fix)
    checked.setdefault("security.protocol", "SASL_SSL")
    names = allowed if isinstance(allowed, list) else []
    try:
        return KafkaSettings(checked, token_function(checked[OAUTH], names, checked))
    except InvalidValueError as error:
        raise InvalidValueError(where, error.value, error.problem, error.hint) from None


def _unknown(where: str, name: str, known: Iterable[str]) -> InvalidValueError:
    """Return the refusal of a setting; a mistyped name may have a secret for its value."""
    fix = _did_you_mean(name, known) or f"known: {', '.join(known)}"
    return InvalidValueError(where, MASK, "is an unknown setting", fix)


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else ""


def _kafka_text(key: str, value: object, where: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (int, float, str)):
        problem = f"is a {type(value).__name__}"
        raise InvalidValueError(where, MASK, problem, "give text, a number or true/false")
    text = str(value)
    if key in _ADDRESSES and "@" in text:  # librdkafka does not use a login, but logs it
        fix = f"give addresses alone; {_ADDRESSES[key]}"
        raise InvalidValueError(where, MASK, "holds a '@', as in name:password@host", fix)
    return text


def _read_secret(path: object, where: str) -> str:
    if not isinstance(path, str) or not path:
        raise InvalidValueError(where, path, "is not a path", "give the path of a readable file")
    secret = _read(Path(path), where).rstrip("\r\n")
    if not secret or "\0" in secret:
        fix = "write the secret alone into the file"
        raise InvalidValueError(where, path, "does not hold a secret", fix)
    return secret


def _masked(name: str, value: str) -> str:
    if SECRET_NAME.search(name):
        return MASK
    return masked_url(value) if "@" in value or "://" in value else value
