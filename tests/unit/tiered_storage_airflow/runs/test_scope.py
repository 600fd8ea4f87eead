from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from support.command_line import mentions
from tiered_storage.settings.settings import Settings, load_settings
from tiered_storage_airflow.forms.allowed_settings import BY_A_FORM
from tiered_storage_airflow.operators.remote_log_operator import RemoteLogOperator
from tiered_storage_airflow.operators.spark_groups import SparkGroupsOperator
from tiered_storage_airflow.runs.scope import is_switched_on, overrides_of, required_number, whole_number


@pytest.mark.parametrize(
    ("value", "meant"), [(True, True), ("True", True), (" true ", True), (False, False), ("False", False)]
)
def test_a_switch_may_come_as_text(value: object, meant: bool) -> None:
    assert is_switched_on(value, "dry_run") is meant


@pytest.mark.parametrize("value", ["", "None", None, "yes", 1, "tru", "{{ params.dry_run }}"])
def test_a_switch_that_says_neither_is_refused(value: object) -> None:
    with pytest.raises(AirflowFailException, match="dry_run"):
        is_switched_on(value, "dry_run")


def test_a_number_may_come_as_text_or_be_left_out() -> None:
    assert [whole_number(value, "max_segments") for value in (None, "", "None", 7, " 7 ")] == [None, None, None, 7, 7]
    for value in (0, -1, "0", "-3", "1.5", "seven", "\u00b2", "9" * 5000, str(2**63)):
        with pytest.raises(AirflowFailException, match="max_segments is"):
            whole_number(value, "max_segments")


def test_a_number_that_is_needed_may_not_be_left_out() -> None:
    assert [required_number(value, "before", least=-1) for value in (0, "-1", " 7 ", str(2**63 - 1))] == [
        0,
        -1,
        7,
        2**63 - 1,
    ]
    for value in (None, "", "-2", "nine", "9" * 5000):
        with pytest.raises(AirflowFailException, match="before is"):
            required_number(value, "before", least=-1)


def test_settings_may_come_as_json() -> None:
    assert overrides_of('{"copy.window.bytes": 65536}') == {"copy.window.bytes": 65536}
    assert overrides_of({"a": 1}) == {"a": 1}
    assert [overrides_of(value) for value in (None, "", "null")] == [None, None, None]
    for value in ('["s3cr3t"]', "7", "{s3cr3t", "[" * 100_000):
        with pytest.raises(AirflowFailException, match="settings") as error:
            overrides_of(value)
        assert "s3cr3t" not in str(error.value)


# A new setting fails the first test until somebody has decided on which side it is.
HELD = {
    "where data lives, and who is asked for it": {
        "log.dirs",
        "bootstrap.servers",
        "broker.log.dirs",
        "cluster.connection",
        "cluster.client.properties.file",
        "cluster.id",
        "state.directory",
        "work.url",
        "export.url",
        "remote.log.storage.manager.class.name",
        "remote.log.storage.manager.class.path",
        "remote.log.storage.manager.impl.prefix",
        "remote.log.metadata.manager.class.name",
        "remote.log.metadata.manager.class.path",
        "remote.log.metadata.manager.impl.prefix",
        "rsm.config.url",
        *(name for name in Settings.declarations() if name.startswith("gateway.")),
        "rsm.config.allow.http",
        "rsm.config.endpoint",
        "rsm.config.region",
        "rsm.config.path.style.access",
        "rsm.config.requester.pays",
        "rsm.config.role.arn",
        "rsm.config.role.external.id",
        "rsm.config.sts.endpoint",
        "rsm.config.ca.bundle",
        "rsm.config.conditional.writes",
        "rlmm.config.url",
        "remote.log.failed.deletions.topic",
    },
    "what is copied, and what is deleted": {
        "log.end.is.stable",
        "remote.log.storage.system.enable",
        "log.retention.ms",
        "log.retention.bytes",
        "log.local.retention.ms",
        "log.local.retention.bytes",
        "log.remote.copy.lag.ms",
        "log.remote.copy.lag.bytes",
        "topics",
    },
    "how safe that is": {
        "lease.duration.ms",
        "clock.max.skew.ms",
        "copy.over.gaps",
        "local.retention.ignored.groups",
        "local.retention.max.segments.per.run",
        "local.retention.topics.ignoring.groups",
        "remote.log.deletion.grace.ms",
        "remote.log.orphan.grace.ms",
        "remote.log.lowered.limit.grace.ms",
        "remote.log.replaced.topic.grace.ms",
        "enable.min.retention.margin.ms",
        "scheduled.deletion.enable",
        "remote.log.unreferenced.max.percent",
        "remote.log.verify.before.trim",
        "deletion.batch.segments",
    },
    "how it is stored, and with whose keys": {
        "rsm.config.server.side.encryption",
        "rsm.config.kms.key.id",
        "rsm.config.compression.enabled",
        "rsm.config.compression.heuristic.enabled",
        "rsm.config.encryption.enabled",
        "rsm.config.encryption.key.ring.file",
        "rsm.config.encryption.key.pair.id",
    },
    "what protects brokers and their network": {
        "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.copy.quota.window.num",
        "remote.log.manager.copy.quota.window.size.seconds",
        "remote.log.manager.fetch.max.bytes.per.second",
        "remote.log.manager.fetch.quota.window.num",
        "remote.log.manager.fetch.quota.window.size.seconds",
    },
    "what a store's class may write into the metadata": {"remote.log.metadata.custom.metadata.max.bytes"},
    "what followers do, which no DAG runs": {
        "follower.fetch.last.tiered.offset.enable",
        "remote.log.index.rotation.bytes",
        "remote.log.index.rotation.interval.ms",
    },
    "what a topic is said to cost": {
        "cost.disk.gb.month",
        "cost.store.gb.month",
        "cost.store.write.thousand",
        "cost.store.read.thousand",
        "cost.transfer.gb",
    },
    "how often and in how many threads the service works": {
        "remote.log.manager.task.interval.ms",
        "remote.log.manager.task.retry.backoff.ms",
        "remote.log.manager.task.retry.backoff.max.ms",
        "remote.log.manager.task.retry.jitter",
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.follower.thread.pool.size",
        *(name for name in Settings.declarations() if name.startswith("service.")),
    },
    "whose pools the tasks of a cluster take, and in which queues": {"own.pools", "copy.queues"},
    "where the form of a restore may restore to": {"restore.directory", "restore.connections"},
    "who reads through the API server, and how much at once": {
        "read.service.rights.file",
        "read.service.metrics.port",
        "read.service.threads",
        "read.service.max.streams",
        "read.service.stalled.after.ms",
    },
    "what all readers of a process share": {
        "remote.log.reader.threads",
        "remote.log.reader.max.pending.tasks",
        "remote.fetch.max.wait.ms",
        "remote.list.offsets.request.timeout.ms",
        "remote.log.index.file.cache.total.size.bytes",
        "local.log.reader.threads",
        "remote.log.reader.read.ahead.bytes",
        "remote.log.reader.cache.memory.bytes",
        "remote.log.reader.cache.disk.bytes",
        "remote.log.reader.metadata.max.age.ms",
    },
}
HELD_NAMES = sorted(set().union(*HELD.values()))


def test_every_setting_is_either_a_forms_or_held() -> None:
    assert BY_A_FORM | set(HELD_NAMES) == {name for name in Settings.declarations() if not name.endswith(".")}
    assert not BY_A_FORM & set(HELD_NAMES)


@pytest.mark.parametrize("name", [*HELD_NAMES, *(older.name for older in Settings.older_names)])
@pytest.mark.parametrize("value", [None, "a value"])
def test_a_form_sets_nothing_that_says_where_data_lives_or_what_is_deleted_but_a_dag_file_may(
    name: str, value: object
) -> None:
    with pytest.raises(AirflowFailException) as refused:
        overrides_of(json.dumps({"copy.window.bytes": 65536, name: value}))

    message = str(refused.value)
    assert mentions(message, f"settings: {name} ", "cannot be set")
    where = "tiered-storage topics" if name == "topics" else f"TIERED_STORAGE_{name.upper().replace('.', '_')}"
    assert where in message
    assert "the settings file" in message
    assert "copy.window.bytes" in message.partition("a form may set")[2]
    assert overrides_of({name: value}) == {name: value}


def test_a_form_reports_all_that_it_may_not_set_and_no_value() -> None:
    with pytest.raises(AirflowFailException) as refused:
        overrides_of(json.dumps({"topics": {"x": {"deletion.allowed": True}}, "rlmm.config.url": "pg://me:secret@db"}))

    assert mentions(str(refused.value), "rlmm.config.url and topics", "cannot be set")
    assert "secret" not in str(refused.value)


def test_a_form_sets_what_it_may(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("")
    given = {**dict.fromkeys(BY_A_FORM, 1 << 20), "metadata.busy.timeout.ms": 60_000}

    settings = load_settings(file, environ={}, overrides=overrides_of(json.dumps(given)))

    assert {name: getattr(settings, name.replace(".", "_")) for name in BY_A_FORM} == given


THROTTLE = "audit.worker.bytes.per.second"


def throttled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """Have an administrator's throttle in the settings."""
    file = tmp_path / "settings.yaml"
    file.write_text(f"{THROTTLE}: {held}\n")
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(file))


@pytest.mark.parametrize("asked", [-1, "-1", (4 << 20) + 1, str(8 << 20)])
def test_a_form_does_not_lift_an_administrators_throttle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: object
) -> None:
    throttled(tmp_path, monkeypatch, 4 << 20)
    operator = RemoteLogOperator(task_id="audit", settings=json.dumps({THROTTLE: asked}))
    with pytest.raises(AirflowFailException, match=rf"{THROTTLE}.*\b4194304\b"):
        operator.opened().__enter__()
    assert overrides_of({THROTTLE: asked}) == {THROTTLE: asked}


@pytest.mark.parametrize(
    ("held", "asked"), [(4 << 20, 4 << 20), (4 << 20, str(1 << 20)), (-1, 4 << 20), (-1, -1), (4 << 20, None)]
)
def test_a_form_lowers_a_throttle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int, asked: object) -> None:
    throttled(tmp_path, monkeypatch, held)
    assert overrides_of(json.dumps({THROTTLE: asked})) == {THROTTLE: asked}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (THROTTLE, "fast"),
        ("metadata.busy.timeout.ms", 10**12),
        ("copy.stuck.after.ms", 10**12),
        ("metadata.busy.timeout.ms", 600_001),
        ("copy.stuck.after.ms", 86_400_001),
    ],
)
def test_a_value_that_a_setting_cannot_have_fails_the_task_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    throttled(tmp_path, monkeypatch, 4 << 20)
    operator = RemoteLogOperator(task_id="audit", settings=json.dumps({name: value}))
    with pytest.raises(AirflowFailException, match=name):
        operator.opened().__enter__()


def test_the_docs_list_what_a_form_may_set() -> None:
    page = Path(__file__).parents[4].joinpath("docs", "airflow.md").read_text("utf-8")
    paragraph = next(each for each in page.split("\n\n") if each.startswith("*Settings* are"))
    assert set(re.findall(r"`([a-z.]+\.[a-z]+)`", paragraph)) == BY_A_FORM


def test_a_name_that_does_not_exist_is_left_to_whoever_knows_the_nearest() -> None:
    assert overrides_of('{"rsm.config.ulr": "s3://x/y"}') == {"rsm.config.ulr": "s3://x/y"}


def test_a_form_sets_no_option_of_a_custom_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "remote.log.storage.manager.class.name: package.Own\nremote.log.storage.manager.impl.prefix: mine.\n"
        "remote.log.metadata.manager.class.name: package.Own\n"
    )
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(file))

    for name in ("mine.bucket", "rlmm.config.server"):
        with pytest.raises(AirflowFailException, match=f"settings: {name} ") as refused:
            overrides_of(json.dumps({name: "s3cr3t"}))
        assert "s3cr3t" not in str(refused.value)
    assert overrides_of({"mine.bucket": "x"}) == {"mine.bucket": "x"}


@pytest.mark.parametrize("operator", [RemoteLogOperator, SparkGroupsOperator])
@pytest.mark.parametrize(
    ("of_dag", "of_task", "is_form"),
    [(False, None, False), (True, None, True), (True, False, False), (False, True, True)],
)
def test_settings_are_those_of_a_form_where_templates_become_values(
    operator: type[RemoteLogOperator | SparkGroupsOperator],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    of_dag: bool,
    of_task: bool | None,
    is_form: bool,
) -> None:
    """Airflow renders a form's text to a mapping there, such as a DAG file gives."""
    file = tmp_path / "settings.yaml"
    file.write_text("")
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(file))
    with DAG("trial", schedule=None, render_template_as_native_obj=of_dag):
        task = operator(task_id="task", render_template_as_native_obj=of_task)
    task.settings = {"rsm.config.url": ""}

    expected = r"settings: rsm\.config\.url " if is_form else r"rsm\.config\.url is ''"
    with pytest.raises(AirflowFailException, match=expected), task.opened():
        pass


@pytest.mark.parametrize("given", ["remote_storage_conn_id", "remote_log_metadata_conn_id", "kafka_conn_id"])
def test_a_mistyped_connection_of_an_operator_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"state.directory: {tmp_path}\nrlmm.config.url: postgresql://me@db.example.com/metadata\n")
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(file))
    with (
        pytest.raises(AirflowFailException, match="mistyped") as refused,
        RemoteLogOperator(task_id="task", **{given: "mistyped"}).opened(),
    ):
        pass
    # No setting names it.
    assert "cluster.connection" not in str(refused.value)


def test_another_cluster_never_takes_the_brokers_connection_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All DAGs may get the same id by default."""
    for name in ("settings.yaml", "settings.west.yaml"):
        (tmp_path / name).write_text(f"state.directory: {tmp_path / name}.state\n")
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(tmp_path / "settings.yaml"))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_FIRST", '{"conn_type": "kafka"}')
    task = RemoteLogOperator(task_id="task", kafka_conn_id="kafka_first", cluster="west")
    with pytest.raises(AirflowFailException, match="kafka_first__west"), task.opened():
        pass
