"""Several processes with one SQLite metadata store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from integration.metadata.metadata_processes import acquire_at_once, acquire_in_turns, open_fresh_stores
from support.clocks import ManualClock
from support.metadata_stores import ORDERS_0, sqlite_store, sqlite_url
from support.processes import in_processes
from tiered_storage.remote_log.metadata.sql.store import open_metadata_store


def test_processes_that_open_a_new_store_at_once_all_get_the_same_one(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path / f'{number}.sqlite'}" for number in range(5)]

    first, second, third = in_processes(3, open_fresh_stores, urls)

    assert first == second == third
    assert len(set(first)) == len(urls)
    for url in urls:
        # Two that close at once may both leave SQLite's journal to the other: who closes alone removes it.
        open_metadata_store(url, ManualClock()).close()
    expected = {f"{number}.sqlite{suffix}" for number in range(5) for suffix in ("", "-reserve")}
    assert {file.name for file in tmp_path.iterdir()} == expected


def test_exactly_one_of_many_processes_gets_a_lease(tmp_path: Path) -> None:
    sqlite_store(tmp_path, ManualClock()).close()
    partitions = [replace(ORDERS_0, partition=number) for number in range(60)]

    first, second = in_processes(2, acquire_at_once, sqlite_url(tmp_path), partitions)

    assert sorted(first + second) == list(range(60))


def test_no_two_processes_are_ever_given_the_same_fencing_number(tmp_path: Path) -> None:
    sqlite_store(tmp_path, ManualClock()).close()

    first, second = in_processes(2, acquire_in_turns, sqlite_url(tmp_path), ORDERS_0, 100)

    assert first == sorted(first)
    assert second == sorted(second)
    assert sorted(first + second) == list(range(1, 201))
