from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.remote_logs import (
    ENABLED,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    partition_of,
    with_context,
)
from tiered_storage.errors import ConfigurationError, LogDirectoryLockedError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.selection import EVERYTHING, Selection
from tiered_storage.remote_log.service.assignments import Assignments
from tiered_storage.remote_log.service.schedule import PartitionSchedule, Role
from tiered_storage.remote_log.source.partition_log import NamedPartition, PartitionReplicas, UnreadablePartition
from unit.tiered_storage.remote_log.service.simulated_time import Time, a_schedule

ORDERS_1, CLICKS_0 = partition_of("orders", 1), partition_of("clicks")


@dataclass
class FakeSource:
    """Names what the test says, and its replicas."""

    found: list[NamedPartition | UnreadablePartition] = field(default_factory=list)
    of: dict[TopicIdPartition, PartitionReplicas] = field(default_factory=dict)
    is_configured: bool = True

    def names(self) -> Iterator[NamedPartition | UnreadablePartition]:
        return iter(self.found)

    def replicas(self) -> dict[TopicIdPartition, PartitionReplicas]:
        return self.of


def named(partition: TopicIdPartition, **others: Any) -> NamedPartition:
    known = {"is_internal": False, "is_compacted": False, "topic_id_is_derived": False, "cluster_id_is_derived": False}
    return NamedPartition(partition, "there", **{**known, **others})


@pytest.fixture
def schedule() -> PartitionSchedule:
    return a_schedule(Time())


@pytest.fixture
def remote_log(tmp_path: Path) -> Iterator[RemoteLogManager]:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 1}, topics={"orders": ENABLED})
    with files.open() as opened:
        yield opened


def assigned(schedule: PartitionSchedule) -> dict[TopicIdPartition, Role]:
    return {each: role for role in Role for each in schedule.partitions(role)}


def test_without_a_broker_it_leads_all_that_is_tiered_or_remote(
    remote_log: RemoteLogManager, schedule: PartitionSchedule
) -> None:
    source: Any = FakeSource([named(ORDERS_1), named(CLICKS_0), named(partition_of("orders", 7), is_internal=True)])
    assignments = Assignments(with_context(remote_log, source=source).context, schedule, EVERYTHING)

    assignments.refresh()

    assert assigned(schedule) == {ORDERS_0: Role.LEADER, ORDERS_1: Role.LEADER}


def test_beside_a_broker_it_has_what_the_broker_leads_or_replicates(
    remote_log: RemoteLogManager, schedule: PartitionSchedule
) -> None:
    third = partition_of("orders", 2)
    source: Any = FakeSource([named(each) for each in (ORDERS_0, ORDERS_1, third)])
    source.of = {
        ORDERS_0: PartitionReplicas(1, (1, 2)),
        ORDERS_1: PartitionReplicas(2, (2, 1)),
        third: PartitionReplicas(2, (2, 3)),
    }
    assignments = Assignments(with_context(remote_log, source=source).context, schedule, EVERYTHING, broker=1)
    assignments.refresh()
    assert assigned(schedule) == {ORDERS_0: Role.LEADER, ORDERS_1: Role.FOLLOWER}

    source.of = {ORDERS_0: PartitionReplicas(None, (1, 2)), ORDERS_1: PartitionReplicas(1, (2, 1))}
    assignments.refresh()
    assert assigned(schedule) == {ORDERS_0: Role.FOLLOWER, ORDERS_1: Role.LEADER}


def test_what_is_gone_is_removed_and_what_cannot_be_read_stays(
    remote_log: RemoteLogManager, schedule: PartitionSchedule
) -> None:
    source: Any = FakeSource([named(ORDERS_1), named(partition_of("orders", 2))])
    assignments = Assignments(with_context(remote_log, source=source).context, schedule, Selection("orders"))
    assignments.refresh()

    source.found = [UnreadablePartition("orders-1", "a broken file")]
    assignments.refresh()

    assert set(assigned(schedule)) == {ORDERS_0, ORDERS_1}


def test_only_selected_partitions_are_assigned(remote_log: RemoteLogManager, schedule: PartitionSchedule) -> None:
    selection = Selection("orders", frozenset({0}))
    source: Any = FakeSource([named(ORDERS_0), named(ORDERS_1)])
    Assignments(with_context(remote_log, source=source).context, schedule, selection).refresh()

    assert set(assigned(schedule)) == {ORDERS_0}


def test_a_directory_that_a_broker_holds_leaves_assignments_as_they_are(
    tmp_path: Path, schedule: PartitionSchedule
) -> None:
    files: RemoteLogFiles = a_remote_log(tmp_path)
    with files.open() as remote_log:
        assignments = Assignments(remote_log.context, schedule, EVERYTHING)
        assignments.refresh()
        with locked(files), pytest.raises(LogDirectoryLockedError):
            assignments.refresh()

    assert assigned(schedule) == {ORDERS_0: Role.LEADER}


def locked(files: RemoteLogFiles) -> Any:
    from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter

    return LogDirectoryWriter.open(files.log_directory)


def test_log_directories_name_no_leaders(remote_log: RemoteLogManager, schedule: PartitionSchedule) -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        Assignments(remote_log.context, schedule, EVERYTHING, broker=1)
