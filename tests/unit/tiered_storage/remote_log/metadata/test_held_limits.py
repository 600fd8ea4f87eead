"""A limit that brokers lower counts only after a grace time; one that they raise counts at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tiered_storage.errors import MetadataCorruptError
from tiered_storage.remote_log.metadata.held_limits import HeldLimits, Lowered

DAY = 86_400_000
WEEK = 7 * DAY
NAME = "retention.ms"


def after(*looks: tuple[int, int], name: str = NAME) -> HeldLimits:
    """Return what counts after looks at (day, limit), with a grace time of a week."""
    held = HeldLimits()
    for day, limit in looks:
        held = held.seen({name: limit}, day * DAY, WEEK)
    return held


@pytest.mark.parametrize(
    ("looks", "counted"),
    [
        ([(0, 30)], 30),
        ([(0, 30), (1, 60)], 60),
        ([(0, 30), (1, -1)], -1),
        ([(0, 30), (1, 10)], 30),
        ([(0, 30), (1, 10), (7, 10)], 30),
        ([(0, 30), (1, 10), (8, 10)], 10),
        ([(0, -1), (1, 10), (7, 10)], -1),
        ([(0, -1), (1, 10), (8, 10)], 10),
        # Back again, and lowered once more: the grace time begins again.
        ([(0, 30), (1, 10), (5, 30), (6, 10), (12, 10)], 30),
        # A still lower limit waits from when it was seen; a part of it that was taken back does not.
        ([(0, 30), (1, 10), (7, 5), (8, 5)], 30),
        ([(0, 30), (1, 10), (7, 5), (14, 5)], 5),
        ([(0, 30), (1, 10), (7, 20), (8, 20)], 20),
        # A clock that was ahead makes nothing count sooner.
        ([(0, 30), (9, 10), (1, 10), (15, 10)], 30),
    ],
)
def test_a_lower_limit_counts_after_the_grace_time_and_a_higher_one_at_once(
    looks: list[tuple[int, int]], counted: int
) -> None:
    held = after(*looks)
    assert held.counted == {NAME: counted}
    present = looks[-1][1]
    assert held.counting({NAME: present, "remote.copy.lag.ms": 5}) == {NAME: counted, "remote.copy.lag.ms": 5}
    assert held.holds(NAME, present) == (counted != present) == (NAME in held.lowered)


def test_as_the_total_is_no_lower_limit_of_its_own() -> None:
    name = "local.retention.ms"
    assert after((0, 30), (1, -2), name=name).counted == {name: -2}
    assert after((0, -2), (1, 30), name=name).counting({name: 30}) == {name: -2}


def test_without_a_grace_time_every_limit_counts_at_once() -> None:
    held = HeldLimits().seen({NAME: 30}, 0, 0).seen({NAME: 10}, 1, 0)
    assert held == HeldLimits({NAME: 10})


def test_limits_are_kept_in_a_row_that_no_topic_has() -> None:
    held = HeldLimits().seen({NAME: 30, "retention.bytes": -1, "segment.ms": 7}, 0, WEEK)
    held = held.seen({NAME: 10, "retention.bytes": -1}, DAY, WEEK)
    assert (held.counted, held.lowered) == ({NAME: 30, "retention.bytes": -1}, {NAME: Lowered(10, DAY)})
    row = held.row("cluster", "id")
    assert HeldLimits.of(row) == held
    assert (row.topic_id != "id", row.name.isalnum()) == (True, False)
    assert HeldLimits.of(None) == HeldLimits()


@pytest.mark.parametrize("change", [{NAME: "soon"}, {f"{NAME}.lowered.since.ms": "?"}, {f"{NAME}.lowered.to": ""}])
def test_a_damaged_row_is_an_error(change: Mapping[str, str]) -> None:
    row = after((0, 30), (1, 10)).row("cluster", "id")
    with pytest.raises(MetadataCorruptError, match=r"id.*restore"):
        HeldLimits.of(replace(row, properties={**row.properties, **change}))
