"""The switch of deletions where something is wrong with the settings or the store of a cluster beside the first."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from servers.postgres import PASSWORD, postgres_url, the_server
from support.tiered_site import TIERED, TieredSite
from tiered_storage.errors import RemoteStorageError
from tiered_storage_airflow.operators import deletion
from tiered_storage_airflow.operators.deletion import StopDeletionsOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TieredSite:
    """The first cluster, whose settings and store are right."""
    site = TieredSite(tmp_path)
    site.write_logs({"orders-0": 1})
    site.configure({"orders": TIERED})
    site.copy()
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(site.config))
    return site


@pytest.fixture
def west(first: TieredSite) -> TieredSite:
    """The cluster `west` beside it, with segments in its store."""
    site = TieredSite(first.root / "west")
    site.root.mkdir()
    site.write_logs({"orders-0": 1})
    settle(first, site)
    site.copy()
    return site


def settle(first: TieredSite, west: TieredSite, lines: str = "", **settings: object) -> None:
    """Write the settings file of `west`, `lines` at its end."""
    west.configure({"orders": TIERED}, **settings)
    first.config.with_name("tiered_storage.west.yaml").write_text(west.config.read_text() + lines)


def stop(**arguments: Any) -> bool:
    run = SimpleNamespace(
        dag_id="stop_deletions__west",
        run_id="run",
        run_type="manual",
        triggering_user_name="ada",
        run_after=datetime.now(UTC),
    )
    task = SimpleNamespace(try_number=1, task_id="switch", xcom_push=lambda **_: None)
    context: Any = {"dag_run": run, "ti": task, "params": {}}
    return StopDeletionsOperator(task_id="switch", cluster="west", **arguments).execute(cast("Context", context))


def reason_of(site: TieredSite) -> str | None:
    with site.open() as remote_log:
        stopped = remote_log.context.safety.stopped()
    return None if stopped is None else stopped.reason


def test_an_invalid_setting_of_a_cluster_stops_that_cluster_and_no_other(first: TieredSite, west: TieredSite) -> None:
    settle(first, west, "no.such.setting: 1\n")
    assert stop(reason="doubt")
    assert (reason_of(west), reason_of(first)) == ("doubt", None)


def test_a_summary_that_cannot_be_written_stops_no_other_cluster(
    first: TieredSite, west: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RemoteStorageError("the work area cannot be written")

    monkeypatch.setattr(deletion, "summarize", refuse)
    assert stop(reason="doubt")
    assert (reason_of(west), reason_of(first)) == ("doubt", None)


def test_the_metadata_that_the_dag_names_are_stopped(first: TieredSite, west: TieredSite) -> None:
    """Settings of the operator's own, of which another one is invalid."""
    elsewhere = first.root / "elsewhere.db"
    (west.state / "remote_log_metadata.db").rename(elsewhere)
    assert stop(reason="doubt", settings={"rlmm.config.url": f"sqlite:///{elsewhere}", "copy.stuck.after.ms": "soon"})
    elsewhere.rename(west.state / "remote_log_metadata.db")
    assert (reason_of(west), reason_of(first)) == ("doubt", None)


def test_a_stop_logs_in_with_the_connection_of_the_metadata(
    first: TieredSite, west: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = postgres_url(first.root).rpartition("/")[2]
    url = the_server().url(database, password=None)
    settle(first, west, rlmm_config_url=url, rsm_config_url=(west.root / "new-store").as_uri())
    connection = json.dumps({"conn_type": "postgres", "password": PASSWORD})
    monkeypatch.setenv("AIRFLOW_CONN_REMOTE_LOG_METADATA_DEFAULT", connection)
    assert stop(reason="first")
    settle(first, west, "no.such.setting: 1\n", rlmm_config_url=url)

    assert stop(reason="doubt")

    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    settle(first, west, rlmm_config_url=url, rsm_config_url=(west.root / "new-store").as_uri())
    assert (reason_of(west), reason_of(first)) == ("doubt", None)
