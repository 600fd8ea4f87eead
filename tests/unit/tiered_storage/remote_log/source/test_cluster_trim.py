"""A running cluster's brokers delete records: what is asked of them, and what their answers mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from support.command_line import mentions
from tiered_storage.errors import ClusterRefusedError, LineageContradictedError, SourceClusterError
from tiered_storage.kafka_wire.apis import DELETE_RECORDS
from tiered_storage.kafka_wire.error_codes import PartitionError
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.cluster_trim import ClusterTrim
from tiered_storage.remote_log.source.segment_source import LocalSegment, SegmentLocation

ORDERS_0 = TopicIdPartition("cluster", "A" * 22, 0, "orders")
ZERO = TopicPartition("orders", 0)
SEGMENTS = [LocalSegment(start, start + 99, 1000, SegmentLocation(f"kafka://{start}")) for start in (0, 100)]


@dataclass
class Brokers:
    """Brokers that give one answer, and what they were asked."""

    answer: int | PartitionError
    asked: list[Mapping[TopicPartition, int]] = field(default_factory=list)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | PartitionError]:
        self.asked.append(before)
        return {ZERO: self.answer}

    def trimmed_to(self, still_due: int = 200) -> int:
        return ClusterTrim(self.delete_records).trim(ORDERS_0, SEGMENTS, 200, lambda: still_due)


def test_the_log_start_that_the_leader_answers_is_the_new_one() -> None:
    brokers = Brokers(200)
    assert brokers.trimmed_to() == 200
    assert brokers.asked == [{ZERO: 200}]
    # Their own retention may have been ahead.
    assert Brokers(250).trimmed_to() == 250


def test_no_more_is_asked_than_is_still_due() -> None:
    brokers = Brokers(100)
    assert brokers.trimmed_to(still_due=100) == 100
    assert brokers.asked == [{ZERO: 100}]
    nothing = Brokers(0)
    assert nothing.trimmed_to(still_due=0) == 0
    assert nothing.asked == []


def test_if_it_is_in_doubt_nothing_is_asked() -> None:
    brokers = Brokers(200)

    def doubtful() -> int:
        raise LineageContradictedError("an outdated replica")

    with pytest.raises(LineageContradictedError):
        ClusterTrim(brokers.delete_records).trim(ORDERS_0, SEGMENTS, 200, doubtful)
    assert brokers.asked == []


def test_a_log_start_before_the_asked_one_is_an_error() -> None:
    with pytest.raises(SourceClusterError, match=r"offset 200 .*log start 150"):
        Brokers(150).trimmed_to()


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (29, ClusterRefusedError, ["--operation Delete", "--topic orders"]),
        (6, SourceClusterError, ["NOT_LEADER_OR_FOLLOWER", "try again"]),
        (1, ClusterRefusedError, ["OFFSET_OUT_OF_RANGE"]),
        (44, ClusterRefusedError, ["POLICY_VIOLATION", "cleanup.policy"]),
        (7, SourceClusterError, ["REQUEST_TIMED_OUT", "request.timeout.ms"]),
    ],
)
def test_a_refusal_names_the_partition_the_offset_and_the_remedy(
    code: int, kind: type[SourceClusterError], words: list[str]
) -> None:
    with pytest.raises(kind) as refused:
        Brokers(PartitionError("orders", 0, DELETE_RECORDS, code)).trimmed_to()
    assert mentions(str(refused.value), "orders-0", 200, *words)
