"""A store that lists a partition in several parts is refused by whatever takes one part for all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.remote_logs import RemoteLogFiles, a_copied_remote_log
from tiered_storage.errors import RemoteStorageError
from tiered_storage.remote_log.audit.audit import audit_remote_log
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.rebuild.stored_partitions import stored_partitions
from tiered_storage.remote_log.restore.plan import plan_restore
from tiered_storage.remote_log.restore.request import RestoreRequest
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.listable_storage import ListedObject, list_by_partition
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

TWO = {("orders", 0): 2, ("orders", 1): 1}


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path, TWO)


class Mixing(ObjectRemoteStorageManager):
    """A store that lists by the ends of names, so that partitions alternate."""

    def list_objects(self, folder: str = "", after: str = "") -> Iterator[ListedObject]:
        return iter(sorted(super().list_objects(folder, after), key=lambda found: found.name[::-1]))


def run_audit(remote_log: RemoteLogManager, storage: Mixing) -> object:
    return audit_remote_log(replace(remote_log.context, storage=storage), EVERYTHING)


def run_restore(remote_log: RemoteLogManager, storage: Mixing) -> object:
    return plan_restore(remote_log.context.segments, remote_log.context.leases, storage, RestoreRequest("orders"))


def run_rebuild(_: RemoteLogManager, storage: Mixing) -> object:
    return list(stored_partitions(storage))


@pytest.mark.parametrize("work", [run_audit, run_restore, run_rebuild])
def test_a_partition_that_is_listed_in_several_parts_is_refused(
    files: RemoteLogFiles, work: Callable[[RemoteLogManager, Mixing], object]
) -> None:
    with files.open() as remote_log:
        assert isinstance(remote_log.context.storage, ObjectRemoteStorageManager)
        storage = Mixing(remote_log.context.storage._client)

        with pytest.raises(RemoteStorageError, match=r"orders-.*several parts"):
            work(remote_log, storage)


def test_partitions_that_follow_one_another_are_listed_with_all_of_theirs(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        assert isinstance(remote_log.context.storage, ObjectRemoteStorageManager)
        found = {
            str(partition): len(list(listed)) for partition, listed in list_by_partition(remote_log.context.storage)
        }

    # Three objects a segment, and the partition's document.
    assert (found["orders-0"], found["orders-1"]) == (7, 4)
