from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from resource import RLIM_INFINITY

import pytest

from tiered_storage.gateway.workers import allow_open_files


@pytest.mark.parametrize(
    ("limits", "changed", "is_enough"),
    [
        ((1_024, 20_000), [(2_200, 20_000)], True),
        ((1_024, RLIM_INFINITY), [(2_200, RLIM_INFINITY)], True),
        ((1_024, 1_500), [(1_500, 1_500)], False),
        ((1_024, 1_024), [], False),
        ((20_000, 20_000), [], True),
        ((RLIM_INFINITY, RLIM_INFINITY), [], True),
    ],
)
def test_a_process_may_open_what_its_connections_need(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limits: tuple[int, int],
    changed: list[tuple[int, int]],
    is_enough: bool,
) -> None:
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, to: seen.append(to))

    allow_open_files(1_000, 2)

    assert seen == changed
    assert (not caplog.records) == is_enough
    assert is_enough or "gateway.max.connections" in caplog.text


COUNT_HEAPS = """
import ctypes, sys, threading
from pathlib import Path
from tiered_storage.gateway.workers import keep_freed_memory

libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
kept, all_have = [], threading.Barrier(8)

def heaps():
    file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
    libc.malloc_info(0, file)
    libc.fclose(file)
    return Path(sys.argv[1]).read_text().count("<heap nr=")

def take():
    kept.append(bytes(50_000))
    all_have.wait()

keep_freed_memory()
before, threads = heaps(), [threading.Thread(target=take) for _ in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
print(heaps() - before)
"""


@pytest.mark.parametrize(("chosen", "adds_heaps"), [({}, False), ({"MALLOC_ARENA_MAX": "64"}, True)])
def test_threads_get_no_heap_of_their_own_unless_the_environment_chose(
    tmp_path: Path, chosen: dict[str, str], adds_heaps: bool
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command: list[str | Path] = [sys.executable, "-c", COUNT_HEAPS, tmp_path / "heaps.xml"]

    added = subprocess.run(command, env={**environment, **chosen}, capture_output=True, text=True, check=True).stdout

    assert (int(added) > 0) is adds_heaps
