"""The DAGs by which a person deletes: a topic, or records of a partition."""

from __future__ import annotations

from dags.airflow_runs import AirflowHome
from support.command_line import mentions
from support.tiered_site import HOUR_MS, TIERED, TieredSite, partition, topic_id

DELETABLE = {**TIERED, "remote.deletion.allowed": True, "retention.ms": -1}


def test_a_topic_is_deleted_once_its_name_was_confirmed_and_the_next_expiry_takes_its_objects(
    airflow: AirflowHome, site: TieredSite
) -> None:
    site.write_logs({"orders-0": 2, "orders-1": 1, "payments-0": 1})
    site.configure({"orders": DELETABLE, "payments": DELETABLE})
    site.copy()
    site.configure({"orders": {**DELETABLE, "remote.storage.enable": False}, "payments": DELETABLE})
    with site.open() as remote_log:
        remote_log.context.topics.put(remote_log.context.decided_topic(partition("orders-0")))

    shown = airflow.run("delete_topic", {"topic": "orders"})
    assert shown.state == "success", shown.messages
    assert shown.tasks == {"plan": "success", "mark_deleted": "skipped"}
    assert "orders-0: 2 segments, 2402 bytes" in shown.log
    assert f"topic id: {topic_id('orders')}" in shown.log
    unconfirmed = airflow.run("delete_topic", {"topic": "orders", "dry_run": False, "confirmation": "order"})
    assert unconfirmed.state == "failed"
    assert mentions(unconfirmed.messages, "nothing was deleted", "confirmation", "'order'")
    assert [len(site.segments(name)) for name in ("orders-0", "orders-1", "payments-0")] == [2, 1, 1]

    done = airflow.run("delete_topic", {"topic": "orders", "dry_run": False, "confirmation": "orders"})
    assert done.state == "success", done.messages
    assert airflow.run("expire_remote_segments").state == "success"
    assert [len(site.segments(name)) for name in ("orders-0", "orders-1", "payments-0")] == [0, 0, 1]
    assert site.local("orders-0") == [0, 10, 20]
    nobody = airflow.run("delete_topic", {"topic": "nobody"})
    assert nobody.state == "failed"
    assert "nobody" in nobody.messages


def test_marking_a_leased_topic_succeeds_in_a_later_try(airflow: AirflowHome, site: TieredSite) -> None:
    site.write_logs({"orders-0": 2, "orders-1": 1})
    site.configure({"orders": DELETABLE})
    site.copy()
    site.configure({"orders": {**DELETABLE, "remote.storage.enable": False}})
    with site.open() as remote_log:
        remote_log.context.topics.put(remote_log.context.decided_topic(partition("orders-0")))
        lease = remote_log.context.leases.acquire(partition("orders-1"), "somebody", HOUR_MS)
        form = {"topic": "orders", "dry_run": False, "confirmation": "orders"}
        run = airflow.run("delete_topic", form)
        assert run.state == "failed"
        assert len(run.errors["mark_deleted"]) == 4
        assert "not marked: orders-1: " in run.messages
        assert "trigger the DAG again" in run.messages
        remote_log.context.leases.release(lease)
    again = airflow.run("delete_topic", form)
    assert again.state == "success", again.messages


def test_records_before_an_offset_are_deleted_and_an_offset_past_the_end_is_refused(
    airflow: AirflowHome, site: TieredSite
) -> None:
    site.write_logs({"orders-0": 3})
    site.configure({"orders": DELETABLE})
    site.copy()
    shown = airflow.run("delete_records", {"topic": "orders", "partition": 0, "before": 20})
    assert shown.state == "success", shown.messages
    assert mentions(shown.log, "partition: orders-0,", "new log start: 20,", "segments: 2,", "bytes: 2,402")
    assert site.finished("orders-0") == [0, 10, 20]
    beyond = airflow.run("delete_records", {"topic": "orders", "partition": 0, "before": 1000, "dry_run": False})
    assert beyond.state == "failed"
    assert site.finished("orders-0") == [0, 10, 20]

    done = airflow.run("delete_records", {"topic": "orders", "partition": 0, "before": 20, "dry_run": False})
    assert done.state == "success", done.messages
    assert airflow.run("expire_remote_segments").state == "success"
    assert [segment.start_offset for segment in site.segments("orders-0")] == [20]
    with site.open() as remote_log:
        assert remote_log.context.segments.log_start_offset(partition("orders-0")) == 20


def test_deleting_records_of_a_leased_partition_is_retried_then_fails(airflow: AirflowHome, site: TieredSite) -> None:
    site.write_logs({"orders-0": 3})
    site.configure({"orders": DELETABLE})
    site.copy()
    form = {"topic": "orders", "partition": 0, "before": 20, "dry_run": False}
    with site.open() as remote_log:
        lease = remote_log.context.leases.acquire(partition("orders-0"), "somebody", HOUR_MS)
        run = airflow.run("delete_records", form)
        assert run.state == "failed"
        assert len(run.errors["mark_deleted"]) == 4
        assert "not deleted: orders-0: " in run.messages
        assert "somebody works on it" in run.messages
        assert "trigger the DAG again" in run.messages
        remote_log.context.leases.release(lease)
    assert airflow.run("delete_records", form).state == "success"
    with site.open() as remote_log:
        assert remote_log.context.segments.log_start_offset(partition("orders-0")) == 20


def test_records_that_may_not_be_deleted_are_refused_by_the_plan(airflow: AirflowHome, site: TieredSite) -> None:
    site.write_logs({"orders-0": 3})
    site.configure({"orders": TIERED})
    site.copy()
    for dry_run in (True, False):
        form = {"topic": "orders", "partition": 0, "before": 20, "dry_run": dry_run}
        run = airflow.run("delete_records", form)
        assert run.state == "failed"
        assert list(run.errors) == ["plan"]
        assert mentions(run.messages, "orders-0", "topics allow-deletion")
