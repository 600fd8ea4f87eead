from __future__ import annotations

from dataclasses import replace

import pytest

from support.command_line import mentions
from tiered_storage.remote_log.metrics.partition_metrics import (
    MOST_NAMED,
    CopyLag,
    OffsetRule,
    PartitionMetrics,
    SegmentMetrics,
    TierOffsets,
    TopicMetrics,
)
from unit.built_metrics import partition_metrics

SOUND = TierOffsets(local_start=20, stable_end=90, local_end=100, remote_start=0, remote_end=60, log_start=0)


def test_offsets_that_fit_together_violate_no_rule() -> None:
    assert SOUND.violated == ()
    assert TierOffsets().violated == ()
    assert TierOffsets(5, 5, 5, 5, 5, 5).violated == ()


@pytest.mark.parametrize(
    ("changed", "violated"),
    [
        ({"local_end": 89}, OffsetRule.LOCAL_END),
        ({"local_start": 91, "remote_end": 90}, OffsetRule.STABLE_END),
        ({"remote_end": 91}, OffsetRule.REMOTE_END),
        ({"remote_start": 61}, OffsetRule.REMOTE_START),
    ],
)
def test_each_rule_is_named_once_its_offsets_contradict_each_other(
    changed: dict[str, int], violated: OffsetRule
) -> None:
    assert replace(SOUND, **changed).violated == (violated,)


@pytest.mark.parametrize(
    ("offsets", "tail", "missing"),
    [
        (SOUND, 30, 0),
        (replace(SOUND, remote_start=None, remote_end=None, log_start=None), 70, 0),
        (replace(SOUND, remote_start=None, remote_end=None, log_start=10), 70, 10),
        (replace(SOUND, remote_end=15), 70, 5),
        (replace(SOUND, log_start=75), 15, 0),
        (TierOffsets(remote_start=0, remote_end=60), 0, 0),
    ],
)
def test_the_untiered_tail_begins_where_the_remote_log_ends(offsets: TierOffsets, tail: int, missing: int) -> None:
    assert (offsets.tail, offsets.missing) == (tail, missing)


def test_a_topic_adds_up_its_partitions_and_takes_the_oldest_lag() -> None:
    partitions = [
        partition_metrics("orders", 0, CopyLag(2, 200, 5_000), remote=3, stuck=1),
        partition_metrics("orders", 1, CopyLag(1, 100, None), remote=4, failed_deletions=2),
        partition_metrics("orders", 2, CopyLag(1, 50, 9_000)),
        partition_metrics("orders", 3),
    ]
    topic = TopicMetrics.of("orders", partitions)
    assert topic.lag == CopyLag(4, 350, 9_000)
    assert (topic.partitions, topic.segments.remote, topic.tail) == (4, 7, 3 * 40)
    assert topic.troubles == ("orders-0: 1 stuck copies", "orders-1: 2 failed deletions")


def test_a_topic_of_which_nothing_is_copied_has_no_lag_at_all() -> None:
    assert TopicMetrics.of("orders", [partition_metrics("orders", 0)]).lag is None


def test_a_topic_has_no_lag_if_all_that_is_known_is_that_some_partitions_have_none() -> None:
    unknown = replace(partition_metrics("orders", 0), is_lag_unknown=True, tail_size=None)
    caught_up, lagging = (partition_metrics("orders", 1, lag) for lag in (CopyLag(), CopyLag(1, 50, 9_000)))
    known, some, none = (
        TopicMetrics.of("orders", each) for each in ([lagging, unknown], [caught_up, unknown], [unknown])
    )
    assert (known.lag, known.tail_size, known.tail) == (CopyLag(1, 50, 9_000), 100, 80)
    assert (some.lag, some.tail_size, some.tail) == (None, None, 80)
    assert (none.lag, none.tail_size, none.tail, none.is_copied) == (None, None, 40, True)


def test_only_some_of_the_partitions_in_trouble_are_named() -> None:
    bad = [partition_metrics("orders", number, CopyLag(), stuck=1) for number in range(3 * MOST_NAMED)]
    topic = TopicMetrics.of("orders", bad)
    assert len(topic.troubles) == MOST_NAMED
    assert topic.segments.stuck == 3 * MOST_NAMED


def test_a_violated_rule_is_counted_and_named_with_its_partition() -> None:
    wrong = replace(SOUND, remote_end=91)
    partition = partition_metrics("orders", 7).partition
    metrics = PartitionMetrics(partition, wrong, SegmentMetrics(), CopyLag(), violated=wrong.violated)
    topic = TopicMetrics.of("orders", [metrics])
    assert topic.violating == {**dict.fromkeys(OffsetRule, 0), OffsetRule.REMOTE_END: 1}
    [trouble] = topic.troubles
    assert mentions(trouble, "orders-7", OffsetRule.REMOTE_END.value)
