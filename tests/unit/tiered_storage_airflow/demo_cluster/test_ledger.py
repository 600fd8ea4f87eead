from __future__ import annotations

from pathlib import Path

from tiered_storage_airflow.demo_cluster.ledger import Ledger, Place, RecordCounts, judge


def place(offset: int, partition: int = 0, topic: str = "orders") -> Place:
    return Place(topic, partition, offset)


ACKNOWLEDGED = {b"a": place(0), b"b": place(1), b"c": place(2)}


def test_a_record_counts_where_it_is_and_remote_first() -> None:
    remote = {place(0): [b"a"], place(1): [b"b"]}
    local = {place(1): [b"b"], place(2): [b"c"], place(3): [b"never acknowledged"]}

    counts = judge(ACKNOWLEDGED, remote, local)

    assert counts == {"orders": RecordCounts(3, remote=2, local=1, lost=0, twice=0, trimmed=1)}
    assert counts["orders"].is_right


def test_a_record_that_is_nowhere_or_at_another_place_is_lost() -> None:
    counts = judge(ACKNOWLEDGED, {place(0): [b"a"]}, {place(2): [b"b"]})["orders"]

    assert (counts.lost, counts.twice) == (2, 0)
    assert not counts.is_right
    assert "lost: b, acknowledged in orders-0 at offset 1" in counts.examples


def test_a_record_at_two_places_is_there_twice_whichever_tiers_have_it() -> None:
    remote = {place(0): [b"a"], place(1): [b"b"], place(2): [b"c"]}

    within = judge(ACKNOWLEDGED, {**remote, place(7): [b"a"]}, {})["orders"]
    across = judge(ACKNOWLEDGED, remote, {place(9): [b"c"]})["orders"]
    in_both = judge(ACKNOWLEDGED, remote, remote)["orders"]

    assert (within.lost, within.twice) == (0, 1)
    assert (across.lost, across.twice) == (0, 1)
    assert in_both.is_right


def test_an_offset_that_a_tier_gives_twice_is_there_twice() -> None:
    remote = {place(0): [b"a", b"a"], place(1): [b"b"], place(2): [b"c"]}

    counts = judge(ACKNOWLEDGED, remote, {})["orders"]

    assert (counts.remote, counts.twice) == (3, 1)


def test_topics_are_judged_apart_and_add_up() -> None:
    acknowledged = {b"a": place(0), b"p": place(0, topic="payments")}

    counts = judge(acknowledged, {place(0): [b"a"]}, {})

    assert counts["orders"].is_right
    assert not counts["payments"].is_right
    assert counts["orders"] + counts["payments"] == RecordCounts(
        2, 1, 0, 1, 0, 1, ("lost: p, acknowledged in payments-0 at offset 0",)
    )


def test_the_ledger_is_a_file_with_a_line_a_record(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.csv")

    ledger.acknowledge(b"orders-7", place(3, partition=1))

    assert ledger.acknowledged() == {b"orders-7": place(3, partition=1)}
    assert (tmp_path / "ledger.csv").read_text() == "orders-7,orders,1,3\n"
