from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.lineage import agreed_end, contradiction, merged, up_to

Epochs = tuple[tuple[int, int], ...]


def entries(epochs: Epochs) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(*entry) for entry in epochs)


@pytest.mark.parametrize(
    ("known", "observed", "expected"),
    [
        ((), (), ()),
        (((0, 0),), (), ((0, 0),)),
        ((), ((1, 15),), ((1, 15),)),
        # The broker was trimmed.
        (((0, 0), (1, 15)), ((1, 20),), ((0, 0), (1, 15))),
        (((0, 0), (1, 15)), ((2, 20),), ((0, 0), (1, 15), (2, 20))),
        (((0, 0), (1, 15), (2, 17)), ((2, 20), (4, 30)), ((0, 0), (1, 15), (2, 17), (4, 30))),
        # A later leader cut what was there.
        (((0, 0), (1, 15)), ((0, 0), (2, 11)), ((0, 0), (2, 11))),
        (((0, 0), (1, 15)), ((2, 11),), ((0, 0), (2, 11))),
        (((0, 0), (1, 15)), ((2, 0),), ((2, 0),)),
        # The log of leader 2 was given up for another: where that one parted from it nobody knows.
        (((0, 0), (2, 10)), ((1, 20), (3, 30)), ((1, 20), (3, 30))),
        (((0, 0), (2, 25)), ((1, 20), (3, 30)), ((1, 20), (3, 30))),
        (((0, 0), (1, 15), (2, 25)), ((1, 20), (3, 30)), ((0, 0), (1, 15), (3, 30))),
        # A follower lacks the epoch in which nothing was written.
        (((0, 0), (1, 15), (2, 15)), ((0, 0), (2, 15)), ((0, 0), (2, 15))),
        # An older replica is seen, or one that lags; it may know earlier epochs.
        (((0, 0), (2, 11)), ((0, 0), (1, 15)), ((0, 0), (2, 11))),
        (((3, 50),), ((0, 0), (1, 20)), ((0, 0), (1, 20), (3, 50))),
        (((0, 0), (3, 50)), ((0, 0),), ((0, 0), (3, 50))),
    ],
)
def test_two_lineages_tell_more_than_one(known: Epochs, observed: Epochs, expected: Epochs) -> None:
    found = merged(entries(known), entries(observed))

    assert found == entries(expected)
    assert merged(found, entries(observed)) == merged(found, found) == found


@pytest.mark.parametrize(
    ("known", "observed", "log_end", "expected"),
    [
        ((), ((0, 0),), 30, None),
        (((0, 0),), (), 30, None),
        (((0, 0), (1, 15)), ((0, 0), (1, 15)), 30, None),
        (((0, 0), (1, 15)), ((0, 0), (2, 11)), 30, None),
        (((0, 0), (1, 15)), ((0, 0),), 15, None),
        (((0, 0), (1, 15)), ((0, 0),), 16, (15, 1, 0)),
        (((0, 0), (1, 15), (2, 40)), ((0, 0),), 30, (15, 1, 0)),
        (((0, 0), (1, 15), (2, 40)), ((0, 0), (1, 15)), 30, None),
        (((0, 0), (1, 15), (2, 20)), ((1, 17),), 30, (20, 2, 1)),
        (((0, 0), (2, 20)), ((0, 0), (1, 20), (2, 20)), 30, None),
        # The heir was cut in turn, by the leader before it.
        (((0, 0), (2, 30)), ((0, 0), (1, 15)), 30, (15, 0, 1)),
        (((1, 20), (2, 30)), ((0, 25),), 30, (25, 1, 0)),
        (((3, 50),), ((0, 0),), 50, None),
    ],
)
def test_a_log_that_a_later_leader_contradicts_is_an_older_one(
    known: Epochs, observed: Epochs, log_end: int, expected: tuple[int, int, int] | None
) -> None:
    why = contradiction(entries(known), entries(observed), log_end)

    if expected is None:
        assert why is None
        assert agreed_end(entries(known), entries(observed), log_end) == log_end
    else:
        offset, theirs, own = expected
        assert why is not None
        assert f"offset {offset} has epoch {theirs}, not {own}" in why
        assert agreed_end(entries(known), entries(observed), log_end) == offset


def test_a_lineage_up_to_an_offset_is_the_same_object_where_it_is_whole() -> None:
    lineage = entries(((0, 0), (1, 15), (2, 15), (3, 20)))

    assert up_to(lineage, 20) is lineage
    assert up_to(lineage, 19) == lineage[:3]
    assert up_to(lineage, 14) == lineage[:1]


@dataclass
class Replica:
    """A replica of a partition: who wrote each of its offsets, and its leader-epoch-checkpoint."""

    written_by: list[int] = field(default_factory=list)
    epochs: list[EpochEntry] = field(default_factory=list)
    start: int = 0

    @property
    def end(self) -> int:
        return len(self.written_by)

    def lead(self, epoch: int) -> None:
        """Become the leader: a new epoch begins at the end of the log, also where nothing is written in it."""
        self._note(epoch)

    def append(self, count: int) -> None:
        self.written_by += [self.epochs[-1].epoch] * count

    def follow(self, leader: Replica, count: int) -> None:
        """Cut off what the leader does not have, as KIP-101 does, then fetch so many offsets."""
        agreed = 0
        while agreed < min(self.end, leader.end) and self.written_by[agreed] == leader.written_by[agreed]:
            agreed += 1
        if agreed < self.start or self.end < leader.start:
            # It starts again where the leader's log begins.
            self.written_by, self.epochs, self.start = leader.written_by[: leader.start], [], leader.start
        else:
            del self.written_by[agreed:]
            self.epochs = [entry for entry in self.epochs if entry.start_offset < agreed]
        for offset in range(self.end, min(self.end + count, leader.end)):
            self._note(leader.written_by[offset])
            self.written_by.append(leader.written_by[offset])

    def trim(self, start: int) -> None:
        """Remove what is before `start`, and with it the epochs that ended there."""
        self.start = max(self.start, min(start, self.end))
        before = [entry for entry in self.epochs if entry.start_offset <= self.start]
        after = [entry for entry in self.epochs if entry.start_offset > self.start]
        self.epochs = [*(EpochEntry(entry.epoch, self.start) for entry in before[-1:]), *after]

    def _note(self, epoch: int) -> None:
        if not self.epochs or self.epochs[-1].epoch < epoch:
            self.epochs.append(EpochEntry(epoch, self.end))


def writer(lineage: Sequence[EpochEntry], offset: int) -> int | None:
    return next((entry.epoch for entry in reversed(lineage) if entry.start_offset <= offset), None)


@given(st.data())
def test_the_merged_lineage_holds_for_the_leaders_log_whichever_replica_is_read(data: st.DataObject) -> None:
    """Every leader is looked at once it is elected; then any replica, any time, trimmed or not."""
    replicas = [Replica(), Replica()]
    known: tuple[EpochEntry, ...] = ()
    for epoch in range(data.draw(st.integers(1, 6))):
        leader = data.draw(st.sampled_from(replicas))
        leader.lead(epoch)
        assert contradiction(known, leader.epochs, leader.end) is None
        known = merged(known, leader.epochs)
        for _ in range(data.draw(st.integers(0, 4))):
            follower = next(each for each in replicas if each is not leader)
            match data.draw(st.sampled_from(["append", "fetch", "trim", "look"])):
                case "append":
                    leader.append(data.draw(st.integers(1, 5)))
                case "fetch":
                    follower.follow(leader, data.draw(st.integers(0, 8)))
                case "trim":
                    each = data.draw(st.sampled_from(replicas))
                    each.trim(data.draw(st.integers(0, each.end)))
                case _:
                    seen = data.draw(st.sampled_from(replicas))
                    found = contradiction(known, seen.epochs, seen.end)
                    # Below where either of the two begins nobody can compare them.
                    begin = max([known[0].start_offset, *(entry.start_offset for entry in seen.epochs[:1])])
                    is_cut_off = seen.written_by[begin:] != leader.written_by[begin : seen.end]
                    assert (found is not None) == (is_cut_off and bool(seen.epochs))
                    if found is None:
                        known = merged(known, seen.epochs)
        reached = range(known[0].start_offset, leader.end)
        assert [writer(known, offset) for offset in reached] == [leader.written_by[offset] for offset in reached]
