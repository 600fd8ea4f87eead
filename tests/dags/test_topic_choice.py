"""Which topics a run takes: by its form, by the Variable remote_log_topics, or all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from dags.airflow_runs import AirflowHome
from support.tiered_site import TIERED, TieredSite
from tiered_storage_airflow.forms.fields import TOPICS_VARIABLE

if TYPE_CHECKING:
    from support.spark_in_process import SparkInProcess

SetVariable = Callable[[str], None]


@pytest.fixture
def set_variable(airflow: AirflowHome) -> Iterator[SetVariable]:
    """Sets the Variable as Airflow's page does; removes it after the test."""
    from airflow.models.variable import Variable
    from airflow.utils.session import create_session

    def set_value(value: str) -> None:
        with create_session() as session:
            Variable.set(TOPICS_VARIABLE, value, session=session)

    yield set_value
    with create_session() as session:
        Variable.delete(TOPICS_VARIABLE, session=session)


@pytest.fixture
def two_topics(site: TieredSite) -> TieredSite:
    site.write_logs({"orders-0": 3, "payments-0": 3})
    deleting = {
        **TIERED,
        "local.deletion.allowed": True,
        "remote.deletion.allowed": True,
        "local.retention.bytes": 1,
        "retention.ms": -1,
    }
    site.configure({"orders": deleting, "payments": deleting})
    return site


def test_without_a_variable_all_topics_are_copied(
    airflow: AirflowHome, two_topics: TieredSite, spark: SparkInProcess
) -> None:
    assert airflow.run("copy_segments").state == "success"

    assert (two_topics.finished("orders-0"), two_topics.finished("payments-0")) == ([0, 10, 20], [0, 10, 20])


@pytest.mark.parametrize(
    ("value", "conf", "is_copied"),
    [
        ("orders", {}, (True, False)),
        ("order", {}, (False, False)),
        ("", {}, (True, True)),
        ("orders", {"topics": ""}, (True, False)),
        ("orders", {"topics": None}, (True, False)),
        ("orders", {"topics": "payments"}, (False, True)),
        ("orders", {"topics": ".*"}, (True, True)),
    ],
)
def test_the_forms_topics_override_the_variable(
    airflow: AirflowHome,
    two_topics: TieredSite,
    spark: SparkInProcess,
    set_variable: SetVariable,
    value: str,
    conf: dict[str, object],
    is_copied: tuple[bool, bool],
) -> None:
    set_variable(value)

    assert airflow.run("copy_segments", conf).state == "success"

    assert (bool(two_topics.finished("orders-0")), bool(two_topics.finished("payments-0"))) == is_copied


def test_the_variable_narrows_the_trimming_after_a_copy_too(
    airflow: AirflowHome, two_topics: TieredSite, set_variable: SetVariable
) -> None:
    two_topics.copy()
    set_variable("orders")
    event = two_topics.announced(1_800_000_000_000, "orders-0", "payments-0")

    assert airflow.run_for_events("enforce_local_retention", [event]).state == "success"

    assert (two_topics.local("orders-0"), two_topics.local("payments-0")) == ([30], [0, 10, 20, 30])


def test_the_variable_narrows_expiry_and_audit_too(
    airflow: AirflowHome, two_topics: TieredSite, set_variable: SetVariable, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_topics.copy()
    set_variable("orders")

    monkeypatch.setenv("TIERED_STORAGE_LOG_RETENTION_BYTES", "1")
    expired = airflow.run("expire_remote_segments", {"dry_run": True})
    assert expired.state == "success"
    assert "past retention: orders-0" in expired.log
    assert "payments-0" not in expired.log
    audited = airflow.run("audit_remote_log")
    assert audited.state == "success"
    assert "3 segments, 9 objects" in audited.log
