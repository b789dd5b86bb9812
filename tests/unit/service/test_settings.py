"""Where settings come from, what is checked, and that secrets stay secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetmgr.errors import InvalidValueError
from offsetmgr.service.kafka_settings import ALLOWED
from offsetmgr.service.listen import TcpAddress, UnixAddress
from offsetmgr.service.settings import CONFIG_LINE_DOTS, Found, Settings, load

if TYPE_CHECKING:
    from pathlib import Path

BOOTSTRAP: Found = {"kafka.bootstrap.servers": ("localhost:9092", "--bootstrap-servers")}


def with_flags(**flags: object) -> Settings:
    """Settings of these flags and a Kafka."""
    return load(None, {}, BOOTSTRAP | {name: (value, "--set") for name, value in flags.items()})


def test_later_sources_win(tmp_path: Path) -> None:
    """TOML < environment < flags, setting by setting."""
    config = tmp_path / "offsetmgr.toml"
    config.write_text(
        'log_level = "debug"\nlease_s = 5\nstop_timeout_s = 7\n'
        '[commit]\ncommit_interval_s = 2.5\n[kafka]\n"bootstrap.servers" = "toml:1"\n'
    )
    env = {"OFFSETMGR_LOG_LEVEL": "error", "OFFSETMGR_LEASE_S": "6"}
    settings = load(config, env, {"log_level": ("warning", "--log-level")})
    assert settings.log_level == "warning"
    assert settings.lease_s == 6.0
    assert settings.stop_timeout_s == 7
    assert settings.commit.commit_interval_s == 2.5
    assert settings.kafka.for_librdkafka() == {"bootstrap.servers": "toml:1"}


@pytest.mark.parametrize("line", ["{}=1", "[{}]", "[commit]\ncommit_interval_s={{{}=1}}"])
def test_a_name_of_too_many_parts_is_refused_before_it_is_read(
    tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The TOML library takes time as the square of them; the error names the line."""
    monkeypatch.setattr("tomllib.loads", pytest.fail)
    config = tmp_path / "offsetmgr.toml"
    config.write_text(f"# ...\n{line.format('.'.join('a' * 50_000))}\n")
    with pytest.raises(InvalidValueError) as error:
        load(config, {}, BOOTSTRAP)
    number = 2 + line.count("\n")
    assert f"line {number} has 49999 dots, more than {CONFIG_LINE_DOTS}" in str(error.value)
    assert str(config) in str(error.value)
    assert "[sections]" in str(error.value)


@pytest.mark.parametrize("quote", ["'", '"'])
def test_dots_of_texts_and_comments_are_no_names(tmp_path: Path, quote: str) -> None:
    """A list of a hundred brokers with long names has dots too, and so may a ruler have."""
    brokers = ",".join(f"b-{n}.orders.a1b2c3.kafka.eu.amazonaws.com:9098" for n in range(100))
    config = tmp_path / "offsetmgr.toml"
    ruler = "#" + "." * 600
    config.write_text(f"{ruler}\nkafka.bootstrap.servers = {quote}{brokers}{quote} {ruler}\n")
    assert load(config, {}, {}).kafka.for_librdkafka() == {"bootstrap.servers": brokers}


def test_the_environment_names_the_file_and_its_sections(tmp_path: Path) -> None:
    """OFFSETMGR_CONFIG is the file; two underscores are a dot, one is librdkafka's dot."""
    config = tmp_path / "offsetmgr.toml"
    config.write_text("[limits]\nmanagers = 5\n[kafka]\nclient.id = 'sidecar'\n")
    settings = load(
        None,
        {
            "OFFSETMGR_CONFIG": str(config),
            "OFFSETMGR_COMMIT__RETRY_BACKOFF_S": "0.5",
            "OFFSETMGR_KAFKA__BOOTSTRAP_SERVERS": "env:1",
            "OFFSETMGR_LISTEN": "unix:///run/o.sock",
        },
        {},
    )
    assert settings.limits.managers == 5
    assert settings.commit.retry_backoff_s == 0.5
    assert settings.kafka.for_librdkafka() == {"bootstrap.servers": "env:1", "client.id": "sidecar"}
    assert settings.listen == UnixAddress("/run/o.sock")


def test_variables_that_are_not_ours_are_left_alone() -> None:
    """Kubernetes adds such for a Service of our name; other commands of ours have theirs."""
    env = {
        "OFFSETMGR_PORT": "tcp://10.0.0.1:8741",
        "OFFSETMGR_PORT_8741_TCP_ADDR": "10.0.0.1",
        "OFFSETMGR_SERVICE_HOST": "10.0.0.1",
        "OFFSETMGR_API_SERVICE_PORT_HTTP": "8741",
        "OFFSETMGR_CACHE": "/var/cache",
        "OFFSETMGR_SERVICE": "http://127.0.0.1:8741",
    }
    assert load(None, env, BOOTSTRAP).listen == TcpAddress("127.0.0.1", 8741)


BAD = [
    ("lease_s", "soon", "lease_s (--set) 'soon' is not a number"),
    ("lease_s", 0, "lease_s (--set) 0 is too small"),
    ("lease_s", True, "True is not a number"),
    ("lease_s", float("nan"), "nan is not a number"),
    ("lease_s", 10**400, "… is too large; give a number of at most 9223372036854775807"),
    ("limits.entries", "1" + "0" * 400, "(401 characters) is too large; give a whole number"),
    ("commit.commit_interval_s", 10**400, "commit.commit_interval_s (--set) 1000"),
    ("commit.request_timeout_s", 4_000, "4000 is too large; give a number of at most 300"),
    ("limits.managers", 1.5, "limits.managers (--set) 1.5 is not a whole number"),
    ("limits.body_bytes", "-1", "is too small"),
    ("log_level", "loud", "give one of debug, info, warning, error"),
    ("cluster_name", "a\nb", "is no name"),
    ("fence", "maybe", "fence (--set) 'maybe' is neither true nor false"),
    ("fence", 1, "1 is neither true nor false"),
    ("commit.retry_backoff_max_s", 0.01, "commit.retry_backoff_max_s (--set) 0.01 is lower"),
    ("comit.interval", 1, "comit.interval (--set) 1 is an unknown setting"),
    ("leases_s", 1, "did you mean lease_s?"),
    ("listen", "0.0.0.0:8741", "can be reached from other machines"),
    ("listen", "[::]:8741", "can be reached from other machines"),
    ("listen", "192.168.1.7:8741", "can be reached from other machines"),
    ("listen", "example.org:80", "is no IP address"),
    ("listen", "127.0.0.1", "is no address with a port"),
    ("listen", "127.0.0.1:65536", "is no address with a port"),
    ("listen", "127.0.0.1:" + "9" * 5_000, "(5010 characters) is no address with a port"),
    ("listen", "unix://relative.sock", "is no absolute path"),
    ("listen", "unix:///" + "x" * 120, "is too long"),
    ("kafka.plugin.library.paths", "/tmp/evil.so", "is not a setting that may be given"),
    ("kafka.sasl.kerberos.kinit.cmd", "rm -rf /", "is not a setting that may be given"),
    ("kafka.sasl.pasword", "geheim", "did you mean sasl.password?"),
    ("kafka.sasl.password_file", "/run/\0", r"'/run/\x00' is not a path; give the path of a"),
    (
        "kafka.reconnect.backoff.max.ms",
        600_001,
        "'600001' is too long a pause; give at most 600000",
    ),
    ("kafka.reconnect.backoff.ms", "9" * 5_000, "(5000 characters) is too long a pause"),
    ("kafka.reconnect.backoff.ms", 2**9_000, "is too large; give a number of at most"),
    ("kafka.client.id", "a\nb", "holds a control character"),
    ("kafka.bootstrap.servers", " ", "kafka.bootstrap.servers is missing"),
]


@pytest.mark.parametrize(("name", "value", "text"), BAD)
def test_a_bad_setting_is_named_with_source_value_and_fix(
    name: str, value: object, text: str
) -> None:
    """Before anything is opened."""
    with pytest.raises(InvalidValueError) as caught:
        with_flags(**{name: value})
    assert text in str(caught.value)
    assert name in caught.value.field
    assert caught.value.fix
    assert "geheim" not in str(caught.value)


def test_a_fence_that_could_not_be_had_is_refused(tmp_path: Path) -> None:
    """With Kerberos, say, at the start and not at the first commit; without a fence all is well."""
    kafka: Found = {"kafka.security.protocol": ("SASL_SSL", "--set")}
    password = tmp_path / "password"
    password.write_text("geheim")
    kafka["kafka.sasl.password_file"] = (str(password), "--set")
    assert not load(None, {}, BOOTSTRAP | kafka).fence
    with pytest.raises(
        InvalidValueError, match=r"fence True cannot be used with .*GSSAPI"
    ) as caught:
        load(None, {"OFFSETMGR_FENCE": "true"}, BOOTSTRAP | kafka)
    assert "geheim" not in str(caught.value)
    kafka["kafka.sasl.mechanism"] = ("PLAIN", "--set")
    assert load(None, {"OFFSETMGR_FENCE": "True"}, BOOTSTRAP | kafka).fence


def test_nothing_that_loads_code_or_runs_commands_is_allowed() -> None:
    """The allow-list leaves out what would give the configuration's author a shell."""
    for key in ("plugin.library.paths", "ssl.engine.location", "ssl.providers"):
        assert key not in ALLOWED
    assert not [key for key in ALLOWED if key.endswith((".cmd", "_cb"))]


@pytest.mark.parametrize(
    ("text", "problem"),
    [("lease_s = ", "is not TOML"), ("[kafka", "is not TOML"), ("a = '\x00'", "is not TOML")],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, problem: str) -> None:
    """With its path and what is wrong in it."""
    config = tmp_path / "broken.toml"
    config.write_text(text)
    with pytest.raises(InvalidValueError, match=problem) as caught:
        load(config, {}, BOOTSTRAP)
    assert str(config) in str(caught.value)


_NAME = ".".join("a" * CONFIG_LINE_DOTS)


@pytest.mark.parametrize("text", ["a = " + "[" * 50_000, f"{_NAME} = 1"])
def test_a_file_of_endless_depth_is_named(tmp_path: Path, text: str) -> None:
    """Whether the parser gives up or what looks through its tables."""
    config = tmp_path / "deep.toml"
    config.write_text(text)
    with pytest.raises(InvalidValueError, match=r"deep\.toml' is nested too deeply; give"):
        load(config, {}, BOOTSTRAP)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A configuration that was asked for and is not there is an error."""
    with pytest.raises(InvalidValueError, match="No such file"):
        load(tmp_path / "absent.toml", {}, BOOTSTRAP)


def test_a_secret_comes_from_a_file_and_never_shows(tmp_path: Path) -> None:
    """Librdkafka gets it; repr, the settings' repr and the masked view do not."""
    secret = tmp_path / "password"
    secret.write_text("geheim\n")
    settings = with_flags(**{"kafka.sasl.password_file": str(secret)})
    assert settings.kafka.for_librdkafka()["sasl.password"] == "geheim"
    assert "geheim" not in repr(settings)
    assert settings.kafka.masked()["sasl.password"] == "***"


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"x" * 70_000])
def test_a_file_without_a_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    """And what it holds is not shown."""
    secret = tmp_path / "password"
    secret.write_bytes(content)
    with pytest.raises(InvalidValueError) as caught:
        with_flags(**{"kafka.sasl.password_file": str(secret)})
    assert "xxx" not in str(caught.value)


def test_a_secret_is_given_once(tmp_path: Path) -> None:
    """Two sources for one secret are a mistake that nobody would find."""
    with pytest.raises(InvalidValueError, match=r"comes beside sasl\.password"):
        with_flags(**{"kafka.sasl.password_file": str(tmp_path), "kafka.sasl.password": "x"})


def test_values_become_what_librdkafka_reads() -> None:
    """TOML's booleans and numbers as text."""
    settings = with_flags(
        **{"kafka.socket.keepalive.enable": True, "kafka.reconnect.backoff.ms": 5}
    )
    found = settings.kafka.for_librdkafka()
    assert found["socket.keepalive.enable"] == "true"
    assert found["reconnect.backoff.ms"] == "5"
