"""A remote log whose programs die, and the one clock of the test and of all its programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from crashes.programs import Programs, ProgramServer
from crashes.recovery import CrashSite
from crashes.shared_clock import SharedClock
from support.clocks import put_at
from support.remote_logs import unsynced
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory


@pytest.fixture(scope="session")
def program_server() -> Iterator[ProgramServer]:
    with ProgramServer() as server:
        yield server


@pytest.fixture(autouse=True)
def without_syncs() -> Iterator[None]:
    """Skip fsync: a killed process loses no write, only a crashed machine does."""
    with unsynced():
        yield


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedClock:
    """The time of the test, of every command that it runs, of all its programs, and of the store."""
    clock = SharedClock(tmp_path / "clock")
    monkeypatch.setattr("tiered_storage.clock.time", clock.time_module())
    monkeypatch.setattr(LocalDirectory, "put", put_at(clock))
    return clock


@pytest.fixture
def programs(program_server: ProgramServer, tmp_path: Path, clock: SharedClock) -> Iterator[Programs]:
    with Programs(program_server, tmp_path / "programs", clock.path) as programs:
        yield programs


@pytest.fixture
def site(tmp_path: Path, clock: SharedClock, programs: Programs) -> CrashSite:
    return CrashSite(tmp_path, clock, programs)
