"""What is running: the record, and the lock around it."""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tiered_storage_airflow.embedded.environment import EmbeddedAirflow
from tiered_storage_airflow.embedded.java import _wheel_java_home
from tiered_storage_airflow.embedded.processes import EmbeddedAirflowError, ServiceProcess, start
from tiered_storage_airflow.embedded.record import (
    RunningAirflow,
    locked,
    read_record,
    record_path,
    remove_record,
    write_record,
)


@pytest.fixture
def running(tmp_path: Path) -> RunningAirflow:
    airflow = EmbeddedAirflow(tmp_path, tmp_path / "settings.yaml", 8181)
    airflow.home.mkdir()
    return RunningAirflow.of(airflow).with_service(ServiceProcess("scheduler", 4711, "boot:1"))


def test_a_record_is_read_back_as_it_was_written(running: RunningAirflow) -> None:
    for record in (running, replace(running, config=None, services=())):
        write_record(record)
        assert read_record(running.home) == record


def test_nothing_is_recorded_before_a_start_and_after_a_stop(running: RunningAirflow) -> None:
    assert read_record(running.home) is None
    write_record(running)
    remove_record(running)
    remove_record(running)
    assert read_record(running.home) is None


def test_each_start_has_a_mark_of_its_own(tmp_path: Path) -> None:
    airflow = EmbeddedAirflow(tmp_path)
    assert RunningAirflow.of(airflow).mark != RunningAirflow.of(airflow).mark


def test_with_a_service_missing_it_is_not_whole(running: RunningAirflow) -> None:
    assert not running.is_whole()


@pytest.mark.parametrize("content", ["", "[]", '{"home": "/"}', '{"services": 1}'])
def test_a_damaged_record_is_named(running: RunningAirflow, content: str) -> None:
    record_path(running.home).write_text(content)
    with pytest.raises(EmbeddedAirflowError, match=r"services\.json: is damaged"):
        read_record(running.home)


def test_the_home_is_closed_to_others(tmp_path: Path) -> None:
    with locked(tmp_path / "airflow", pytest.fail):
        assert stat.S_IMODE((tmp_path / "airflow").stat().st_mode) == 0o700


def test_the_second_of_two_waits_for_the_first_and_says_so(tmp_path: Path) -> None:
    waiting = threading.Event()
    entered = threading.Event()

    def second() -> None:
        with locked(tmp_path, lambda _: waiting.set()):
            entered.set()

    with locked(tmp_path, pytest.fail):
        thread = threading.Thread(target=second, daemon=True)
        thread.start()
        assert waiting.wait(10)
        assert not entered.is_set()
    assert entered.wait(10)
    thread.join(10)


def test_all_that_a_start_writes_is_private_and_a_wide_state_directory_is_narrowed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "remote").mkdir(parents=True)
    state.chmod(0o755)
    before = os.umask(0)
    try:
        airflow = EmbeddedAirflow(state / "demo")
        with locked(airflow.home, report=lambda _: None):
            write_record(RunningAirflow.of(airflow))
        with locked(EmbeddedAirflow(state).home, report=lambda _: None):
            service = start("sleeper", ["true"], {}, log=airflow.service_logs / "sleeper.log", directory=state)
        assert service.pid > 0
        _wheel_java_home(state / "java")
    finally:
        os.umask(before)
    assert [path for path in (state, *state.rglob("*")) if path.stat().st_mode & 0o077] == []
