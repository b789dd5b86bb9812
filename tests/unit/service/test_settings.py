"""Sources of settings, their checks, and the masking of secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from offsetmgr.errors import InvalidValueError
from offsetmgr.kafka.errors import known
from offsetmgr.service.settings import (
    ALLOWED,
    Found,
    Settings,
    by_name,
    defaults,
    from_toml,
    load,
    load_clusters,
    read_clusters,
)
from offsetmgr.stores import open_store

BOOTSTRAP: Found = {"kafka.bootstrap.servers": ("localhost:9092", "--bootstrap-servers")}


def with_flags(**flags: object) -> Settings:
    return load(None, {}, BOOTSTRAP | {name: (value, "--set") for name, value in flags.items()})


def test_the_environment_names_the_file_and_its_sections(tmp_path: Path) -> None:
    """OFFSETMGR_CONFIG is the file; two underscores are a dot, one is librdkafka's dot.

    Booleans and numbers become text for librdkafka.
    """
    config = tmp_path / "offsetmgr.toml"
    config.write_text(
        "\ufeff[limits]\nmanagers = 5\n"  # the mark of an editor
        "[kafka]\nsocket.keepalive.enable = true\nreconnect.backoff.ms = 5\n"
    )
    settings = load(
        None,
        {
            "OFFSETMGR_CONFIG": str(config),
            "OFFSETMGR_COMMIT__RETRY_BACKOFF_S": "0.5",
            "OFFSETMGR_KAFKA__BOOTSTRAP_SERVERS": "env:1",
            "OFFSETMGR_KAFKA__OAUTH": "time:time",
            "OFFSETMGR_OAUTH_FUNCTIONS": "a:b, time:time",
            "OFFSETMGR_LISTEN": "unix:///run/o.sock",
        },
        {},
    )
    assert settings.limits.managers == 5
    assert settings.commit.retry_backoff_s == 0.5
    assert settings.kafka.masked() == {
        "bootstrap.servers": "env:1",
        "socket.keepalive.enable": "true",
        "reconnect.backoff.ms": "5",
        "oauth": "time:time",
        "sasl.mechanism": "OAUTHBEARER",
        "security.protocol": "SASL_SSL",
    }
    assert settings.oauth_functions == ["a:b", "time:time"]
    assert settings.listen == "unix:///run/o.sock"


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
    assert load(None, env, BOOTSTRAP).listen == "127.0.0.1:8741"


BAD = [
    ("lease_s", "soon", "lease_s (--set) must be a number above 0, up to 31622400, not 'soon'"),
    ("lease_s", 0, "not 0"),
    ("lease_s", True, "must be a number above 0, up to 31622400, not True"),
    ("lease_s", "inf", "not 'inf'"),
    ("limits.managers", "1" + "0" * 400, "must be a whole number from 1 to"),
    ("limits.managers", 1.5, "must be a whole number from 1 to 1000000000, not 1.5"),
    ("commit.commit_interval_s", "x", "commit.commit_interval_s (--set) must be a number, not"),
    ("commit.request_timeout_s", 4_000, "is not possible; give a number from 0.001 to 300"),
    ("log_level", "loud", "must be one of debug, error, info, warning, not 'loud'"),
    ("cluster_name", "", "cluster_name (--set) must be text of 1 to 255 characters, not ''"),
    ("fence", "maybe", "fence (--set) must be true or false, not 'maybe'"),
    ("fence_session_timeout_s", 5, "must be a number from 6 to 300, not 5"),
    ("commit.retry_backoff_max_s", 0.01, "commit.retry_backoff_max_s (--set) 0.01 is lower"),
    ("watch.groups", "orders-(", "watch.groups (--set) 'orders-(' is not a regular"),
    ("watch.groups", "a{99999999999999999999}", "is not a regular expression (the repetition"),
    ("watch.groups", "(" * 9_000 + ")" * 9_000, "is not a regular expression (maximum recursion"),
    ("watch.interval_s", 0, "watch.interval_s (--set) must be a number from 1 to 3600, not 0"),
    ("comit.interval", 1, "comit.interval (--set) '***' is an unknown setting"),
    ("leases_s", 1, "did you mean lease_s?"),
    ("listen", "example.org:80", "is not an IP address with a port"),
    ("listen", "127.0.0.1:65536", "is not an IP address with a port"),
    ("listen", "127.0.0.1:" + "9" * 5_000, "(5010 characters) is not an IP address with a port"),
    ("listen", "unix://relative.sock", "is not an absolute path"),
    ("listen", "unix:///" + "x" * 120, "is not an absolute path of at most 107 bytes"),
    ("kafka.plugin.library.paths", "/tmp/evil.so", "is not a setting that may be given"),
    ("kafka.sasl.pasword", "geheim", "did you mean sasl.password?"),
    ("kafka.sasl.password_file", "/run/\0", "'***' holds a NUL, or bytes that are not UTF-8"),
    ("cluster_name", "west\udcff", "holds a NUL, or bytes that are not UTF-8; give plain text"),
    ("follow.all.checkpoint", "/a\0", "holds a NUL, or bytes that are not UTF-8"),
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
    assert caught.value.hint
    assert "geheim" not in str(caught.value)


def test_nothing_that_loads_code_or_runs_commands_is_allowed() -> None:
    """The allow-list leaves out what would give the configuration's author a shell."""
    assert not ALLOWED & {"plugin.library.paths", "ssl.engine.location", "ssl.providers"}
    assert not [key for key in ALLOWED if key.endswith((".cmd", "_cb"))]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lease_s = ", "is not TOML"),
        ("[kafka", "is not TOML"),
        ("a = '\x00'", "is not TOML"),
        (None, r"^config '.*' cannot be read \(No such file"),
        ("/dev/zero", "more than 1048576 bytes"),  # it would take all memory
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, text: str | None, problem: str
) -> None:
    config = tmp_path / "broken.toml"
    if text == "/dev/zero":
        config.symlink_to(text)
    elif text is not None:
        config.write_text(text)
    with pytest.raises(InvalidValueError, match=problem) as caught:
        load(config, {}, BOOTSTRAP)
    assert str(config) in str(caught.value)


def test_a_secret_comes_from_a_file_and_never_shows(tmp_path: Path) -> None:
    """Librdkafka gets it; repr, the settings' repr and the masked view do not."""
    secret = tmp_path / "password"
    secret.write_text("geheim\n")
    settings = with_flags(**{"kafka.sasl.password_file": str(secret)})
    assert settings.kafka.for_librdkafka()["sasl.password"] == "geheim"
    assert "geheim" not in repr(settings)
    assert settings.kafka.masked()["sasl.password"] == "***"
    with pytest.raises(InvalidValueError, match=r"is given as well as sasl\.password"):
        with_flags(**{"kafka.sasl.password_file": str(secret), "kafka.sasl.password": "x"})


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"xxx\0"])
def test_a_file_without_a_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    """Its content is not shown."""
    secret = tmp_path / "password"
    secret.write_bytes(content)
    with pytest.raises(InvalidValueError) as caught:
        with_flags(**{"kafka.sasl.password_file": str(secret)})
    assert "xxx" not in str(caught.value)


def test_the_shipped_file_names_every_setting_at_its_default() -> None:
    shipped = Path(__file__).parents[3] / "deploy" / "offsetmgr.toml"
    assert {name for name in from_toml(shipped) if not name.startswith("kafka.")} == set(defaults())
    loaded = load(shipped, {}, {})
    assert loaded == Settings(kafka=loaded.kafka)


def test_all_settings_are_listed_with_their_defaults() -> None:
    """A section that a file names in part is whole."""
    shipped = Path(__file__).parents[3] / "deploy" / "offsetmgr.toml"
    listed = by_name(load(shipped, {}, {"commit.commit_interval_s": (0.25, "--set")}))
    values = {name: value for name, value in listed.items() if not name.startswith("kafka.")}
    assert values == defaults() | {"commit.commit_interval_s": 0.25}
    some = by_name(with_flags(lease_s=9, **{"watch.groups": "a.*"}))
    assert some == defaults() | {
        "kafka.bootstrap.servers": "localhost:9092",
        "lease_s": 9.0,
        "watch.groups": "a.*",
    }


def test_the_password_of_a_database_stays_secret() -> None:
    """Neither the settings nor an error shows it."""
    url = "postgresql://me:geheim@host/offsets?sslpassword=geheim"
    settings = with_flags(store=url)
    assert settings.store == url
    assert "geheim" not in repr(settings) + str(by_name(settings))
    with pytest.raises(InvalidValueError, match="a database always refuses") as caught:
        with_flags(store=url, fence=True)
    assert "geheim" not in str(caught.value)
    with pytest.raises(InvalidValueError, match=r"store .* is not a URL") as caught:
        with_flags(store="me:geheim@host")
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "visible"),
    [
        ("postgresql://me:geheim@host:5432/offsets", "postgresql://***@host:5432/offsets"),
        ("postgresql://me:ge?heim@host/offsets", "postgresql://***"),
        ("postgresql://me:ge/heim@host/offsets", "postgresql://***@host/offsets"),
        ("postgresql://me:ge@heim@host/offsets", "postgresql://***@host/offsets"),
        ("postgresql://me:ge#heim@host/offsets", "postgresql://***"),
        ("postgresql://host/offsets?user=me&password=geheim", "postgresql://host/offsets?***"),
        ("postgresql://host/offsets?password=ge@heim", "postgresql://***"),
        ("mssql://host/offsets;PWD=geheim", "mssql://host/offsets?***"),
        ("postgresql://me:geheim", "postgresql://***"),
        ("postgresql://me@one:1,two:2/offsets", "postgresql://me@one:1,two:2/offsets"),
        ("sqlite:////var/lib/offsets.db", "sqlite:////var/lib/offsets.db"),
    ],
)
def test_only_the_place_of_a_database_is_shown(url: str, visible: str) -> None:
    """Wherever its password may be; in the settings, and where a group's store is named."""
    assert by_name(with_flags(store=url))["store"] == visible
    if url.startswith("postgresql") and url.endswith("offsets") and "one:1" not in url:
        store = open_store(url.replace("postgresql", "postgresql+psycopg"))
        assert "heim" not in store.url
        store.close()


@pytest.mark.parametrize("secret_of", ["ssl.key", "sasl.oauthbearer.assertion.private.key"])
def test_the_settings_of_oidc_and_azure_are_allowed(tmp_path: Path, secret_of: str) -> None:
    """Each that librdkafka has, but those that load code; private keys come from files."""
    key = tmp_path / "key"
    key.write_text("geheim")
    flags = {
        "kafka.https.ca.location": "/etc/ca.pem",
        "kafka.sasl.oauthbearer.method": "oidc",
        "kafka.sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "kafka.sasl.oauthbearer.assertion.algorithm": "RS256",
        "kafka.sasl.oauthbearer.assertion.file": "/var/run/token",
        "kafka.sasl.oauthbearer.assertion.claim.exp.seconds": 300,
        "kafka.sasl.oauthbearer.metadata.authentication.type": "azure_imds",
        "kafka.sasl.oauthbearer.client.credentials.client.id": "me",
        f"kafka.{secret_of}.pem_file": str(key),
    }
    settings = with_flags(**flags)
    assert settings.kafka.for_librdkafka()[f"{secret_of}.pem"] == "geheim"
    assert "geheim" not in str(by_name(settings))


CLUSTERS = """
[kafka]
"bootstrap.servers" = "here:1"
"client.id" = "service"
[clusters.west]
"bootstrap.servers" = "west:1"
"sasl.password_file" = "{secret}"
[clusters.east]
bootstrap.servers = "east:1"
"""


def test_a_cluster_replaces_the_service_s_own_kafka(tmp_path: Path) -> None:
    """Nothing of [kafka] or of the environment is mixed into it; options count all the same."""
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    config = tmp_path / "offsetmgr.toml"
    config.write_text(CLUSTERS.format(secret=secret))
    env = {"OFFSETMGR_KAFKA__CLIENT_ID": "environment"}
    assert load(config, env, {}).kafka.for_librdkafka() == {
        "bootstrap.servers": "here:1",
        "client.id": "environment",
    }
    west = load(config, env, {}, "west").kafka
    assert west.for_librdkafka() == {"bootstrap.servers": "west:1", "sasl.password": "hush"}
    flags: Found = {"kafka.client.id": ("me", "--set")}
    east = load(config, env, flags, "east").kafka
    assert east.for_librdkafka() == {"bootstrap.servers": "east:1", "client.id": "me"}
    with pytest.raises(InvalidValueError, match=r"--cluster 'north' .* give one of west, east"):
        load(config, env, {}, "north")
    clusters = read_clusters(None, {"OFFSETMGR_CONFIG": str(config)})
    assert list(clusters) == ["west", "east"]
    assert known(clusters["west"]).masked() == {
        "bootstrap.servers": "west:1",
        "sasl.password": "***",
    }


def test_a_wrong_setting_of_a_cluster_is_named_with_it(tmp_path: Path) -> None:
    """The service itself does not look at clusters that it does not use."""
    config = tmp_path / "offsetmgr.toml"
    config.write_text(
        '[kafka]\n"bootstrap.servers" = "here:1"\n[clusters.west]\n"sasl.pasword" = "hush"\n'
    )
    assert load(config, {}, {}).kafka.for_librdkafka() == {"bootstrap.servers": "here:1"}
    for wrong in (
        lambda: load(config, {}, {}, "west"),
        lambda: load_clusters(config, {}),
    ):
        with pytest.raises(InvalidValueError, match="west") as caught:
            wrong()
        assert "did you mean sasl.password" in str(caught.value)
        assert "hush" not in str(caught.value)
    with pytest.raises(InvalidValueError, match=r"give a TOML file with \[clusters.NAME\]"):
        read_clusters(None, {})


def test_a_function_that_gets_tokens_is_called_for_librdkafka(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one that the operator allows, for each cluster of a file."""
    (tmp_path / "our_tokens.py").write_text("def get(config):\n    return 'token', 4e9\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = tmp_path / "offsetmgr.toml"
    cluster = "bootstrap.servers = 'b:1'\noauth = 'our_tokens:get'\n"
    text = f"[kafka]\n{cluster}[clusters.west]\n{cluster}[clusters.east]\n{cluster}"
    config.write_text(text + "sasl.mechanism = 'PLAIN'\n")
    with pytest.raises(InvalidValueError, match=r"kafka\.oauth .*is not an allowed function"):
        load(config, {}, {})
    config.write_text(f"oauth_functions = ['our_tokens:get']\n{config.read_text()}")
    settings = load(config, {}, {})
    librdkafka = settings.kafka.for_librdkafka()
    assert librdkafka.pop("oauth_cb")("") == ("token", 4e9)  # type: ignore[operator]
    assert librdkafka == {
        "bootstrap.servers": "b:1",
        "sasl.mechanism": "OAUTHBEARER",
        "security.protocol": "SASL_SSL",
    }
    assert by_name(settings)["kafka.oauth"] == "our_tokens:get"
    clusters = read_clusters(config, {})
    assert isinstance(clusters["east"], InvalidValueError)
    assert "is not for PLAIN" in str(clusters["east"])
    assert "oauth_cb" in known(clusters["west"]).for_librdkafka()


def test_names_of_tables_with_a_dot(tmp_path: Path) -> None:
    """Followed checkpoints and identities may have one; of a cluster it is refused in one line.

    A setting of Kafka's has dots itself.
    """
    token = tmp_path / "token"
    config = tmp_path / "offsetmgr.toml"
    config.write_text(
        '[kafka]\n"bootstrap.servers" = "here:1"\n'
        '[follow."lake.v2"]\ncheckpoint = "/lake"\ngroups = { "orders.eu" = "etl" }\n'
        f'[identities."etl.eu"]\ngroups = ["*"]\ntopics = ["*"]\ntoken_file = "{token}"\n'
        '[clusters."west.eu"]\n"bootstrap.servers" = "west:1"\n'
    )
    settings = load(config, {}, {})
    assert settings.follow["lake.v2"].groups == {"orders.eu": "etl"}
    assert list(settings.identities) == ["etl.eu"]
    with pytest.raises(InvalidValueError, match="give the cluster a name without a dot"):
        load_clusters(config, {})
