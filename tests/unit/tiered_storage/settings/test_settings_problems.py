"""Settings that are wrong: each is refused with its place, name, value and what is allowed, and all of them at once."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from support.command_line import mentions
from tiered_storage.errors import ConfigurationError
from tiered_storage.settings.settings import Settings, load_settings

Refusal = Callable[..., str]


def _reads_as(message: str, pattern: str) -> bool:
    """Whether `message` is `pattern`, in which * stands for any text."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), message, re.DOTALL) is not None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.yaml"


@pytest.fixture
def refusal(file: Path) -> Refusal:
    def refusal_of(
        text: str, environ: Mapping[str, str] | None = None, overrides: Mapping[str, object] | None = None
    ) -> str:
        file.write_text(text)
        with pytest.raises(ConfigurationError) as caught:
            load_settings(file, environ=environ or {}, overrides=overrides)
        return str(caught.value)

    return refusal_of


def test_a_name_that_is_no_text_is_refused(refusal: Refusal) -> None:
    """As JSON may give one, by an escape of half a character."""
    assert "the run's parameters" in refusal("", overrides={"\ud800": 1})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log.dir: /a", "log.dir * log.dirs?"),
        ("log_dirs: /a", "log_dirs * log.dirs?"),
        ("Log.Retention.MS: 5", "Log.Retention.MS * log.retention.ms?"),
        ("log.retention.hour: 5", "log.retention.hour * log.retention.hours?"),
        ("retention.ms: 5", "retention.ms * log.retention.ms?"),
        ("qqqqqqqqq: 5", "qqqqqqqqq * docs/configuration.md *"),
        (
            "rsm.config.secret.key: hush",
            "rsm.config.secret.key * AWS_* environment * Airflow connection",
        ),
        (
            "log.retention.ms: 7 days",
            "log.retention.ms is '7 days'; allowed: * ms, 1 or more, or -1 *",
        ),
        (
            "log.retention.ms: -2",
            "log.retention.ms is '-2'; allowed: * ms, 1 or more, or -1 *",
        ),
        (
            "log.retention.bytes: 0",
            "log.retention.bytes is '0': 0 *; allowed: * bytes, 1 or more, or -1 *",
        ),
        (
            "log.retention.hours: 1h",
            "log.retention.hours is '1h'; allowed: * hours * log.retention.ms, * ms, 1 or more, or -1 *",
        ),
        (
            f"log.retention.hours: {'9' * 5000}",
            f"log.retention.hours is '{'9' * 119}…; allowed: * hours * log.retention.ms, * ms, 1 or more, or -1 *",
        ),
        (
            "log.local.retention.bytes: -3",
            "log.local.retention.bytes is '-3'; allowed: * bytes, 0 or more, or -1 *, or -2 *",
        ),
        ("lease.duration.ms: 10:30", "lease.duration.ms is '10:30'; allowed: * ms, 1,000 or more"),
        ("lease.duration.ms:", "lease.duration.ms is ''; allowed: * ms, 1,000 or more"),
        ("log.end.is.stable: maybe", "log.end.is.stable is 'maybe'; allowed: true or false"),
        (
            "remote.log.index.chunk.bytes: 8388608",
            "remote.log.index.chunk.bytes is '8388608'; allowed: * bytes, 1,048,576 to 4,194,304",
        ),
        (
            "log.dirs: [/a, /b, /a]",
            "log.dirs is ['/a', '/b', '/a']: /a *; allowed: folders, each once*",
        ),
        *(
            (
                f"broker.log.dirs: {given}",
                f"broker.log.dirs is {given!r}: {reason}; allowed: * 1=/data/a,/data/b;2=/data/c",
            )
            for given, reason in (
                ("/data", "'/data' is not * id *"),
                ("1=", "* no folder of broker 1"),
                ("1=/a;1=/b", "* broker 1 twice"),
                ("1=/a,/a", "/a is listed twice"),
            )
        ),
        (
            "cluster.id: ../up",
            "cluster.id is '../up'; allowed: * 128 *",
        ),
        (
            "remote.log.storage.manager.class.name: Manager",
            "remote.log.storage.manager.class.name is 'Manager'; allowed: * package.module.Class",
        ),
        ("state.directory: ''", "state.directory is ''*; allowed: a folder"),
        ("topics: [orders]", "topics is ['orders']; allowed: a mapping *"),
    ],
)
def test_a_wrong_setting_is_refused_with_file_line_name_value_and_what_is_allowed(
    refusal: Refusal, file: Path, text: str, expected: str
) -> None:
    assert _reads_as(refusal(f"# a comment\n{text}"), f"{file}, line 2: {expected}")


@pytest.mark.parametrize(
    ("name", "url", "reason"),
    [
        ("rsm.config.url", "s3:/bucket", "*://*"),
        ("rsm.config.url", "s3://", "* bucket or folder"),
        ("rsm.config.url", "file://folder", "* file:///folder"),
        ("work.url", "''", "*"),
        ("work.url", "s3://key:hush@bucket", "* credentials: *AWS_*"),
        ("rsm.config.endpoint", "localhost:9000", "* http or https URL"),
        ("rsm.config.endpoint", "https://key:hush@host", "* credentials: *AWS_*"),
        ("rlmm.config.url", "metadata.db", "* URL"),
        ("rlmm.config.url", "sqlite://metadata.db", "* SQLite * three slashes *"),
        ("rlmm.config.url", "'sqlite:///:memory:'", "* empty metadata store*"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_with_the_reason(
    refusal: Refusal, file: Path, name: str, url: str, reason: str
) -> None:
    message = refusal(f"{name}: {url}")
    assert _reads_as(message, f"{file}, line 1: {name} is *: {reason}; allowed: *")
    assert "hush" not in message


def test_an_http_endpoint_is_refused_without_allow_http(refusal: Refusal, file: Path) -> None:
    message = refusal("rsm.config.endpoint: http://host:9000")
    assert mentions(message, f"{file}, line 1: rsm.config.endpoint is http://host:9000", "rsm.config.allow.http: true")
    allowed = load_settings(file, environ={}, overrides={"rsm.config.allow.http": True})
    assert allowed.rsm_config_endpoint == "http://host:9000"


def test_more_local_than_in_total_is_refused(refusal: Refusal, file: Path) -> None:
    assert _reads_as(
        refusal("log.retention.ms: 10\nlog.local.retention.ms: 11"),
        f"{file}, line 2: log.local.retention.ms is 11, *log.retention.ms, 10*",
    )
    assert _reads_as(
        refusal("log.retention.bytes: 5\nlog.local.retention.bytes: -1"),
        "*log.local.retention.bytes is *(-1), *log.retention.bytes, 5*",
    )


def test_an_orphan_must_outlive_a_lease(refusal: Refusal, file: Path) -> None:
    message = refusal("lease.duration.ms: 3600001")
    assert _reads_as(message, f"{file}, line 1: remote.log.orphan.grace.ms *3600000*lease.duration.ms*3600001*")


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ("retentin.ms: 5", "topic orders: retentin.ms * retention.ms?"),
        ("log.retention.ms: 5", "topic orders: log.retention.ms * retention.ms?"),
        (
            "cleanup.policy: compat",
            "topic orders: cleanup.policy is 'compat'; allowed: delete, compact, or compact,delete",
        ),
        (
            "retention.ms: 0",
            "topic orders: retention.ms is '0': 0 *; allowed: * ms, 1 or more, or -1 *",
        ),
        (
            "remote.log.retention.minutes: x",
            (
                "topic orders: remote.log.retention.minutes is 'x'; allowed: * minutes * retention.ms, "
                "* ms, 1 or more, or -1 *"
            ),
        ),
        (
            "{retention.ms: 5, local.retention.ms: 6}",
            "topic orders: local.retention.ms is 6, more than retention.ms, 5*",
        ),
        (
            "local.retention.ms: 1000000000",
            "topic orders, * local.retention.ms is 1000000000, more than retention.ms, 604800000*",
        ),
        ("5", "topic orders is '5'; allowed: a mapping *"),
    ],
)
def test_a_wrong_property_of_a_topic_is_refused_likewise(
    refusal: Refusal, file: Path, properties: str, expected: str
) -> None:
    message = refusal(f"topics:\n  orders:\n    {properties}")
    place, _, problem = message.partition(": ")
    assert place in {f"{file}, line {line}" for line in (2, 3)}
    assert _reads_as(problem, expected)


def test_a_topic_at_odds_with_the_defaults_is_reported_by_its_own_line(refusal: Refusal, file: Path) -> None:
    message = refusal("topics:\n  orders:\n    retention.ms: 5\n  payments:\n    local.retention.ms: -1\n")
    assert mentions(message, f"{file}, line 4: topic payments", "local.retention.ms is ")


def test_a_name_that_no_topic_can_have_is_refused(refusal: Refusal) -> None:
    assert "line 1: 'my topic': " in refusal("topics: {my topic: {}}")


def test_a_topic_may_be_named_like_a_property(file: Path) -> None:
    file.write_text("topics: {remote.log.retention.bytes: {retention.ms: 5}}")
    assert load_settings(file, environ={}).topics["remote.log.retention.bytes"].retention_ms == 5


def test_a_name_that_is_there_twice_is_refused(refusal: Refusal, file: Path) -> None:
    assert _reads_as(
        refusal("cluster.id: a\nlog.dirs: /a\ncluster.id: b"), f"{file}, line 3: cluster.id is * twice*line 1"
    )
    assert _reads_as(
        refusal("topics:\n  orders:\n    retention.ms: 5\n    retention.ms: 5\n  orders: {}\n"),
        f"2 *\n  {file}, line 4: topic orders: retention.ms is * twice*line 3\n"
        f"  {file}, line 5: orders is * twice*line 2",
    )


def test_everything_that_is_wrong_is_reported_at_once(refusal: Refusal, file: Path) -> None:
    message = refusal(
        "log.dir: /a\nlease.duration.ms: soon\nstate.directory: ''\ncluster.id: a\ncluster.id: b\n",
        {"TIERED_STORAGE_COPY_WINDOW_BYTES": "-1", "TIERED_STORAGE_CLUSTER": "a"},
        {"index.interval.bytes": 0, "index.intervall.bytes": 5},
    )
    first, *problems = message.split("\n  ")
    assert first.startswith("8 ")
    assert sorted(problem.partition(": ")[0] for problem in problems) == sorted(
        [
            f"{file}, line 1",
            f"{file}, line 2",
            f"{file}, line 3",
            f"{file}, line 5",
            "environment variable TIERED_STORAGE_COPY_WINDOW_BYTES",
            "environment",
            "the run's parameters",
            "the run's parameters",
        ]
    )


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (
            "TIERED_STORAGE_LOG_DIR",
            "TIERED_STORAGE_LOG_DIR * TIERED_STORAGE_LOG_DIRS?",
        ),
        ("TIERED_STORAGE_X", "TIERED_STORAGE_X * docs/configuration.md *"),
        (
            "TIERED_STORAGE_TOPICS",
            "TIERED_STORAGE_TOPICS: * file * a run's parameters",
        ),
    ],
)
def test_an_unknown_variable_is_refused(refusal: Refusal, variable: str, expected: str) -> None:
    assert _reads_as(refusal("", {variable: "value"}), f"environment: {expected}")


def test_other_peoples_variables_are_left_alone(file: Path) -> None:
    file.write_text("")
    load_settings(file, environ={"TIERED_STORAGE": "1", "LOG_DIRS": "/a", "TIERED_STORAGE_CONFIG": "/not/used"})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "is True: *; allowed: * segments, 1 or more"),
        (1.5, "is 1.5; allowed: * segments, 1 or more"),
        ([5], "is [5]; allowed: * segments, 1 or more"),
        (2**63, "is 9223372036854775808; allowed: * segments, 1 or more"),
    ],
)
def test_a_wrong_parameter_of_a_run_is_refused(refusal: Refusal, value: object, expected: str) -> None:
    message = refusal("", overrides={"copy.max.segments.per.run": value})
    assert _reads_as(message, f"the run's parameters: copy.max.segments.per.run {expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log.dirs: [a", ", line 1: this is not YAML: "),
        ("a: b\n\tc: d", ", line 2: this is not YAML: "),
        ("a: b\n---\nc: d", ", line 2: this is not YAML: "),
        ("\x07", ": this is not YAML: "),
        ("- log.dirs", ", line 1: "),
        ("log.dirs", ", line 1: "),
        ("? [a]\n: b", ", line 1: "),
        ("log.dirs: &all [*all]", ", line 1: log.dirs is "),
        ("log.dirs: {a: {b: {c: {d: e}}}}", ", line 1: log.dirs is "),
        ("cluster.id: !!python/object:os.system x y", ", line 1: cluster.id is 'x y'"),
    ],
)
def test_a_file_that_is_no_settings_file_is_refused_with_the_line(
    refusal: Refusal, file: Path, text: str, expected: str
) -> None:
    assert refusal(text).startswith(f"{file}{expected}")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    absent = tmp_path / "absent.yaml"
    for path, environ in ((absent, {}), (None, {"TIERED_STORAGE_CONFIG": str(absent)})):
        with pytest.raises(ConfigurationError, match=r"absent\.yaml: .*: No such file"):
            load_settings(path, environ=environ)
    with pytest.raises(ConfigurationError, match=": Is a directory"):
        load_settings(tmp_path, environ={})
    (tmp_path / "latin.yaml").write_bytes(b"cluster.id: \xff")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        load_settings(tmp_path / "latin.yaml", environ={})


def test_neither_message_nor_traceback_shows_a_password(file: Path) -> None:
    file.write_text(
        "rlmm.config.url: mysql//root:hush@host\nwork.url: s3://key:hush@bucket\nrsm.config.access.key: hush\n"
        "lease.duration.ms: -1\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        load_settings(file, environ={})
    assert "hush" not in "".join(traceback.format_exception(caught.value))


@hypothesis_settings(deadline=None)
@given(st.text(max_size=200))
def test_whatever_the_file_holds_there_are_settings_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "whatever.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        assert isinstance(load_settings(file, environ={}), Settings)
    except ConfigurationError as error:
        assert str(file) in str(error)


@hypothesis_settings(deadline=None)
@given(
    name=st.sampled_from(Settings.known_names()),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=6,
    ),
)
def test_whatever_a_parameter_holds_there_are_settings_or_a_refusal(name: str, value: object) -> None:
    try:
        assert isinstance(load_settings(environ={}, overrides={name: value}), Settings)
    except ConfigurationError as error:
        assert "the run's parameters" in str(error) or "is not used" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "log.remote.copy.lag.ms: 700000000",
        "log.remote.copy.lag.bytes: 11\nlog.local.retention.bytes: 10",
        "topics:\n  orders:\n    remote.copy.lag.ms: 6\n    local.retention.ms: 5",
        "topics:\n  orders:\n    remote.copy.lag.ms: 700000000",
        "topics:\n  orders:\n    local.retention.ms: 5\nlog.remote.copy.lag.ms: 6",
    ],
)
def test_a_lag_of_more_than_local_retention_is_refused(refusal: Refusal, text: str) -> None:
    assert _reads_as(refusal(text), "*remote.copy.lag.* is *, *local.retention.*")


def test_a_quota_window_as_long_as_copy_stuck_after_is_refused(refusal: Refusal) -> None:
    for kind in ("copy", "fetch"):
        name, limit = f"remote.log.manager.{kind}.quota.window.num", f"remote.log.manager.{kind}.max.bytes.per.second"
        assert load_settings(None, environ={}, overrides={name: 600})
        assert load_settings(None, environ={}, overrides={name: 599, limit: 2_000_000})
        assert f"the 600 s of the {kind} quota" in refusal(f"{name}: 600\n{limit}: 2000000")
