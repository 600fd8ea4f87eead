"""The numbers of decisions in the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiered_storage.errors import LaterVersionError, RemoteObjectCorruptError
from tiered_storage.remote_log.storage.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.object_names import store_decision_name, temporary_name
from tiered_storage.remote_log.storage.store_decisions import StoreDecision, StoreDecisions


@pytest.fixture
def decisions(tmp_path: Path) -> StoreDecisions:
    return StoreDecisions(LocalDirectory(tmp_path / "store"))


def names(decisions: StoreDecisions) -> list[str]:
    return [found.name for found in decisions.client.list()]


def test_of_a_store_that_was_told_nothing_there_is_none(decisions: StoreDecisions) -> None:
    assert (decisions.newest_number(), decisions.newest()) == (0, None)


def test_the_newest_takes_the_place_of_those_before_it(decisions: StoreDecisions) -> None:
    second = StoreDecision(2, "all deletions are stopped", 7)
    assert decisions.add(StoreDecision(1, "topic orders is not tiered", 5))
    assert decisions.add(second)

    assert (decisions.newest_number(), decisions.newest()) == (2, second)
    assert names(decisions) == ["store.decisions/00000000000000000002.json"]


def test_a_number_is_given_once(decisions: StoreDecisions) -> None:
    first = StoreDecision(1, "ada's", 5)
    assert decisions.add(first)
    assert not decisions.add(StoreDecision(1, "grace's", 6))
    assert decisions.newest() == first


def test_what_killed_writers_left_is_no_decision_and_goes_with_the_next(decisions: StoreDecisions) -> None:
    decisions.client.create(temporary_name(store_decision_name(9), "0123456789abcdef"), b"{")
    decisions.client.create("store.decisions/notes.txt", b"somebody's")
    assert decisions.newest_number() == 0
    decisions.add(StoreDecision(1, "x", 5))
    assert sorted(names(decisions)) == [store_decision_name(1), "store.decisions/notes.txt"]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"format_version": 2}, LaterVersionError, "later release"),
        ({"decision": 5}, RemoteObjectCorruptError, "decision is 5"),
        ({"number": 0}, RemoteObjectCorruptError, "number is 0"),
    ],
)
def test_what_cannot_be_read_is_told(
    decisions: StoreDecisions, change: dict[str, object], error: type[Exception], words: str
) -> None:
    fields = json.loads(StoreDecision(3, "x", 5).to_bytes())
    decisions.client.create(store_decision_name(3), json.dumps({**fields, **change}).encode())
    with pytest.raises(error, match=words):
        decisions.newest()


def test_a_broken_one_counts_by_its_number_where_nobody_knows_it(decisions: StoreDecisions) -> None:
    decisions.client.create(store_decision_name(3), b"{")
    assert decisions.newest_after(3) is None
    broken = decisions.newest_after(2)
    assert broken is not None
    assert broken.number == 3
    assert "no JSON" in broken.decision


def test_a_number_that_nothing_can_hold_is_none(decisions: StoreDecisions) -> None:
    decisions.client.create(store_decision_name(2**63), b"{")
    assert decisions.newest_after(0) is None
