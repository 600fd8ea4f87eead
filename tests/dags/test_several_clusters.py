"""Several clusters in one Airflow: each has its DAGs, asset, Variable, pages and, where asked, its pools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import yaml
from starlette.testclient import TestClient

from dags.airflow_runs import OWN_DAGS, AirflowHome
from support.airflow_home import PROJECT
from support.command_line import mentions
from support.read_service_site import login
from support.tiered_site import TIERED, TieredSite
from tiered_storage_airflow.links import report_url

if TYPE_CHECKING:
    from support.spark_in_process import SparkInProcess

DELETABLE = {**TIERED, "local.deletion.allowed": True, "local.retention.bytes": 0}


@pytest.fixture
def west(airflow: AirflowHome, site: TieredSite) -> TieredSite:
    """A cluster beside that of `site`, with a topic of the same name, rights for OP, and pools of its own."""
    site.write_logs({"orders-0": 2})
    site.configure({"orders": DELETABLE})
    west = TieredSite(site.root / "west")
    west.root.mkdir()
    west.write_logs({"orders-0": 1, "clicks-0": 1})
    rights = west.root / "rights.yaml"
    rights.write_text("roles: {OP: {read: ['*']}}\n")
    own = {"own_pools": True, "read_service_rights_file": str(rights), "gateway_canary_topic": "canary"}
    west.configure({"orders": DELETABLE, "clicks": TIERED}, **own)
    site.config.with_name("tiered_storage.west.yaml").write_text(west.config.read_text())
    airflow.refresh()
    return west


def test_runs_of_a_cluster_copy_and_trim_its_own_topics_alone(
    airflow: AirflowHome, site: TieredSite, west: TieredSite, spark: SparkInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_REMOTE_LOG_TOPICS", "none")
    monkeypatch.setenv("AIRFLOW_VAR_REMOTE_LOG_TOPICS__WEST", "orders")
    copied = airflow.run("copy_segments__west")
    assert copied.state == "success", copied.messages
    assert (west.finished("orders-0"), west.finished("clicks-0")) == ([0], [])
    assert not site.state.exists() or site.finished("orders-0") == []
    [event] = airflow.events_of(copied)
    assert airflow.announced_by(copied, "west") == ["orders-0"]

    trimmed = airflow.run_for_events("enforce_local_retention__west", [event], asset="remote_log__west")
    assert trimmed.state == "success", trimmed.messages
    assert (west.local("orders-0"), site.local("orders-0")) == ([10], [0, 10, 20])

    first = airflow.run("copy_segments", {"topics": "orders"})
    assert first.state == "success", first.messages
    assert (site.finished("orders-0"), west.finished("orders-0")) == ([0, 10], [0])


@pytest.mark.usefixtures("with_canary")
def test_every_dag_is_there_for_each_cluster_with_its_schedule_and_pools(
    airflow: AirflowHome, west: TieredSite
) -> None:
    for path in sorted((PROJECT / "dags").glob("*.py")):
        first, other = airflow.dag(path.stem), airflow.dag(f"{path.stem}__west")
        assert (first.doc_md, sorted(first.params)) == (other.doc_md, sorted(other.params))
        for task in other.tasks:
            alike = first.get_task(task.task_id)
            assert task.pool == (alike.pool if alike.pool == "default_pool" else f"{alike.pool}__west")
            unmapped: Any = task.unmap({"results": {}}) if task.is_mapped else task
            assert unmapped.cluster == "west"
    schedule: Any = airflow.dag("enforce_local_retention__west").schedule
    assert [asset.name for asset in schedule.asset_condition.objects] == ["remote_log__west"]


def test_a_cluster_whose_pools_are_not_known_says_so_in_its_dags_and_stops_no_other_cluster(
    airflow: AirflowHome, site: TieredSite, west: TieredSite, spark: SparkInProcess
) -> None:
    file = site.config.with_name("tiered_storage.west.yaml")
    file.write_text(west.config.read_text().replace("own.pools: true", "own.pools: ture"))
    airflow.refresh()
    broken = airflow.dag("copy_segments__west")
    assert "invalid-settings" in broken.tags
    assert broken.doc_md is not None
    assert mentions(broken.doc_md, f"**{file}: own.pools is 'ture': ", "true or false")
    assert {task.pool for task in broken.tasks} == {"remote_log_metadata", "remote_log_copier"}
    failed = airflow.run("copy_segments__west")
    assert failed.state == "failed"
    assert "own.pools" in failed.messages

    first = airflow.dag("copy_segments")
    assert "invalid-settings" not in first.tags
    copied = airflow.run("copy_segments", {"topics": "orders"})
    assert copied.state == "success", copied.messages


def test_a_clusters_own_connection_overrides_the_shared_one(west: TieredSite, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiered_storage.settings.settings import load_cluster_settings
    from tiered_storage_airflow.hooks.remote_storage import RemoteStorageHook

    for name, key in (("REMOTE_STORAGE_DEFAULT", "of-all"), ("REMOTE_STORAGE_DEFAULT__WEST", "of-west")):
        given = {"conn_type": "aws", "login": key, "password": "secret"}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(given))
    for cluster, expected in ((None, "of-all"), ("west", "of-west")):
        settings = load_cluster_settings(cluster).model_copy(update={"rsm_config_url": "s3://bucket/path"})
        assert RemoteStorageHook(cluster=cluster).options(settings).access_key_id == expected


@pytest.fixture
def api(airflow: AirflowHome, site: TieredSite, west: TieredSite) -> Iterator[TestClient]:
    from airflow.api_fastapi.app import create_app

    west.copy()
    site.copy()
    with TestClient(create_app(apps="core"), raise_server_exceptions=False) as client:
        yield client


def test_the_pages_and_the_read_service_of_a_cluster_are_below_its_name(
    api: TestClient, airflow: AirflowHome, spark: SparkInProcess
) -> None:
    operator = login("somebody", "OP")
    found = api.get("/remote-log/clusters/west/v1/topics", headers=operator).json()["topics"]
    assert sorted(each["topic"] for each in found) == ["clicks", "orders"]
    page = api.get("/remote-log/clusters/west/page/", headers=operator)
    assert 'href="/remote-log/clusters/west/page/topics/orders"' in page.text
    assert '<a href="/remote-log/page/">the first</a>' in page.text
    assert "Remote Log: west" in page.text
    partition = api.get("/remote-log/clusters/west/page/topics/orders/partitions/0", headers=operator)
    assert partition.status_code == 200
    assert api.get("/remote-log/clusters/west/v1/topics").status_code == 401
    assert api.get("/remote-log/clusters/east/v1/topics", headers=operator).status_code == 404
    first = api.get("/remote-log/page/", headers=operator)
    assert '<a href="/remote-log/clusters/west/page/">west</a>' in first.text

    run = airflow.run("plan_deletions__west")
    report = api.get(report_url("plan_deletions__west", run.run_id, "west"), headers=login("somebody", "ADMIN"))
    assert report.status_code == 200


def test_each_task_of_a_custom_dag_links_to_its_files_on_its_cluster(api: TestClient, airflow: AirflowHome) -> None:
    run = airflow.run("nightly__west", folder=OWN_DAGS)
    assert run.state == "success", run.messages
    admin = login("somebody", "ADMIN")
    for task_id, cluster in (("of_the_first", None), ("of_west", "west")):
        path = f"/api/v2/dags/nightly__west/dagRuns/{quote(run.run_id, safe='')}/taskInstances/{task_id}/links"
        [link] = api.get(path, headers=admin).json()["extra_links"].values()
        assert link == report_url("nightly__west", run.run_id, cluster)
        report = api.get(link, headers=admin)
        assert report.status_code == 200, report.text
        assert re.findall(r'href="\?file=(\w+)%2Fsegments.jsonl"', report.text) == [task_id]
    assert api.get(report_url("nightly__west", run.run_id, "east"), headers=admin).status_code == 404
    assert api.get(report_url("nightly__west", run.run_id, "west")).status_code == 401


def test_pools_of_a_cluster_are_made_with_those_of_all(west: TieredSite) -> None:
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session

    from tiered_storage_airflow.embedded.airflow_settings import main

    main(PROJECT / "airflow_settings.yaml")
    with create_session() as session:
        slots = {pool.pool: pool.slots for pool in session.query(Pool)}
    assert slots["remote_log_copier__west"] == slots["remote_log_copier"] == 2
    assert yaml.safe_load(west.config.read_text())["own.pools"] is True
