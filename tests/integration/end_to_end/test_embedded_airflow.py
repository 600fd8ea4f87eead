"""The embedded Airflow, really started: who gets in, what listens, what runs, and that nothing stays.

It keeps its state in a PostgreSQL of the user's, and the metadata of its remote log in another database there;
`make demo` and the browser's tests use SQLite files.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import httpx
import psutil
import pytest

from servers.postgres import PASSWORD, USER, the_server
from support.command_line import mentions
from support.shown_secrets import holds
from support.tiered_site import TIERED, TieredSite
from tiered_storage_airflow.demo_cluster.brokers import free_ports
from tiered_storage_airflow.embedded import services
from tiered_storage_airflow.embedded.credentials import read
from tiered_storage_airflow.embedded.environment import DATABASE_VARIABLE, PROJECT_ROOT, EmbeddedAirflow
from tiered_storage_airflow.embedded.processes import members
from tiered_storage_airflow.embedded.record import SERVICE_NAMES, RunningAirflow
from tiered_storage_airflow.embedded.settings_file import read_airflow_settings

DAGS = """
import time
from pathlib import Path

from airflow.sdk import Asset, BaseHook, dag, task

COPIED = Asset("copied")


@dag(schedule=None, params={"greeting": "nothing"})
def produce():
    @task(outlets=[COPIED], pool="remote_log_copier")
    def greet(params=None):
        print("greeting:", params["greeting"], BaseHook.get_connection("spark_default").host)

    greet()


@dag(schedule=COPIED)
def consume():
    @task
    def fail():
        raise ValueError("on purpose")

    fail()


@dag(schedule=None)
def work():
    for pool, slots in POOLS.items():
        for slot in range(slots):

            @task(task_id=f"{pool}-{slot}", pool=pool)
            def proceed():
                while not Path("STOPPED").exists():
                    time.sleep(0.5)

            proceed()


@dag(schedule=None)
def stop():
    @task(priority_weight=1_000_000)
    def switch():
        Path("STOPPED").touch()

    switch()


produce()
consume()
work()
stop()
"""


DAG_IDS = ("produce", "consume", "work", "stop", "copy_segments")
METADATA = "metadata_of_make_up"
"""The database of the metadata."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAirflow]:
    root = tmp_path_factory.mktemp("embedded")
    (root / "dags").mkdir()
    pools = read_airflow_settings(PROJECT_ROOT / "airflow_settings.yaml").pools
    slots = {pool.pool_name: pool.pool_slot for pool in pools}
    trial = DAGS.replace("POOLS", repr(slots)).replace("STOPPED", str(root / "stopped"))
    (root / "dags" / "trial.py").write_text(trial)
    (root / "dags" / "broken.py").write_text("from airflow.sdk import dag\nraise RuntimeError('broken on purpose')\n")
    shutil.copy(PROJECT_ROOT / "dags" / "copy_segments.py", root / "dags")
    site = TieredSite(root)
    site.write_logs({"orders-0": 3})
    the_server().database(METADATA)
    site.configure({"orders": TIERED}, rlmm_config_url=f"postgresql://127.0.0.1:{the_server().port}/{METADATA}")
    [port] = free_ports(1)
    airflow = EmbeddedAirflow(site.state, site.config, port=port, dags_folder=root / "dags")
    said: list[str] = []
    environ = {
        **os.environ,
        DATABASE_VARIABLE: the_server().database("airflow"),
        "AIRFLOW_CONN_REMOTE_LOG_METADATA_DEFAULT": json.dumps(
            {"conn_type": "postgres", "login": USER, "password": PASSWORD}
        ),
    }
    started = services.up(airflow, report=said.append, environ=environ)
    try:
        assert said[-1] == f"Airflow is up: http://127.0.0.1:{port}"
        assert any(mentions(line, "broken.py ", "RuntimeError: broken on purpose") for line in said)
        assert services.up(airflow, report=said.append, environ=environ) == started
        assert mentions(said[-1], "already", f"http://127.0.0.1:{port}")
        yield started
    finally:
        services.down(site.state, report=said.append)


def test_nobody_gets_in_without_the_generated_login(running: RunningAirflow) -> None:
    with httpx.Client(base_url=running.url, trust_env=False) as http:
        assert http.get("/api/v2/dags").status_code == 401
        assert http.get("/auth/token").status_code in {401, 403}
        wrong = {"username": "admin", "password": "admin"}
        assert http.post("/auth/token", json=wrong).status_code == 401
    for name in ("passwords.json", "secrets.json", "airflow.cfg"):
        assert stat.S_IMODE((running.home / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(running.home.stat().st_mode) == 0o700


def test_a_run_gets_its_conf_connection_and_pool_and_its_asset_event_starts_another(running: RunningAirflow) -> None:
    with services.connect(running) as api:
        assert {dag.dag_id: dag.is_paused for dag in api.dags()} == dict.fromkeys(DAG_IDS, True)
        for dag_id in ("consume", "produce"):
            api.unpause(dag_id)
        produced = api.wait_for_run(api.trigger("produce", {"greeting": "hello"}), 60)
        assert produced.state == "success", api.failures(produced)
        [greet] = api.task_instances(produced)
        assert "greeting: hello local[*]" in api.task_log(greet)
        consumed = api.wait_for_asset_triggered_run("consume", produced.run_after, 30)
        assert api.wait_for_run(consumed, 60).state == "failed"
        assert "fail failed:" in api.failures(consumed)
        assert "ValueError: on purpose" in api.failures(consumed)


def test_the_database_is_the_one_that_the_user_named(running: RunningAirflow) -> None:
    assert set(DAG_IDS) <= {dag_id for (dag_id,) in the_server().execute("SELECT dag_id FROM dag", "airflow")}
    assert not (running.home / "airflow.db").exists()


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_copy_keeps_its_metadata_in_the_other_database_by_the_password_of_a_connection(
    running: RunningAirflow,
) -> None:
    with services.connect(running) as api:
        # The schedule's own run waits for it.
        triggered = api.trigger("copy_segments", {}, run_after=datetime(2020, 1, 1, tzinfo=UTC))
        api.unpause("copy_segments")
        copied = api.wait_for_run(triggered, 600)
        assert copied.state == "success", api.failures(copied)
    finished = "SELECT start_offset FROM segments WHERE state = 1 ORDER BY start_offset"
    assert the_server().execute(finished, METADATA) == [(0,), (10,), (20,)]
    assert list(running.home.parent.rglob("*.db")) == []
    logs = [path.read_bytes() for path in (running.home / "logs").rglob("*.log")]
    assert logs
    assert not any(holds(log, [PASSWORD.encode(), quote(PASSWORD, safe="").encode()]) for log in logs)


def test_a_stop_begins_though_every_slot_of_every_pool_is_taken(running: RunningAirflow) -> None:
    with services.connect(running) as api:
        for dag_id in ("work", "stop"):
            api.unpause(dag_id)
        work = api.trigger("work", {})
        patience = time.monotonic() + 120
        while (states := {task.state for task in api.task_instances(work)}) != {"running"}:
            assert time.monotonic() < patience, states
            time.sleep(0.5)
        assert api.wait_for_run(api.trigger("stop", {}), 60).state == "success"
        assert api.wait_for_run(work, 60).state == "success"


def test_only_loopback_is_listened_on(running: RunningAirflow) -> None:
    ours = members(running.services, running.mark)
    listening = [
        connection.laddr
        for process in ours
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert f"http://127.0.0.1:{listening[0].port}" == running.url


def test_no_secret_lies_in_the_arguments_of_a_process(running: RunningAirflow) -> None:
    credentials = read(running.home)
    shared = json.loads((running.home / "secrets.json").read_text())
    arguments = "\n".join("\n".join(process.cmdline()) for process in members(running.services, running.mark))
    secrets = (credentials.admin_password, PASSWORD, quote(PASSWORD, safe=""), *shared.values())
    assert not [secret for secret in secrets if secret in arguments]


def test_stopping_ends_every_process(running: RunningAirflow) -> None:
    ours = members(running.services, running.mark)
    assert {service.name for service in running.services} == set(SERVICE_NAMES)
    assert len(ours) > len(SERVICE_NAMES)
    state = Path(running.home).parent
    assert services.down(state, report=lambda _: None)
    assert [process for process in ours if process.is_running() and process.status() != psutil.STATUS_ZOMBIE] == []
    assert members(running.services, running.mark) == []
    assert services.running_airflow(state) is None
    assert not services.down(state, report=lambda _: None)
