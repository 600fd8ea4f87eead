"""Failed deletions in a topic of the running cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from servers.real_kafka import RealKafka
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite, finished
from support.records import varied_records
from tiered_storage.errors import RemoteStorageError, RemoteStorageRefusedError
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory

FAILED = "__delete_failed_remote_log_segments"
TOPIC = "kept_by_its_store"
DeleteMany = Callable[[LocalDirectory, Sequence[str]], Mapping[str, RemoteStorageError]]
_EXPIRING = {"remote.storage.enable": True, "remote.deletion.allowed": True, "retention.bytes": 1}


def refusing(delete_many: DeleteMany, segment_id: str) -> DeleteMany:
    """Return `delete_many`, which now refuses the objects of one segment."""

    def guarded(store: LocalDirectory, names: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        kept = [name for name in names if segment_id in name]
        deleted = delete_many(store, [name for name in names if name not in kept])
        return {**deleted, **{name: RemoteStorageRefusedError(f"{name} is guarded by hand") for name in kept}}

    return guarded


def test_a_failed_deletion_is_recorded_until_the_store_deletes_the_object(
    kafka: RealKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "topics": {TOPIC: _EXPIRING},
        "remote.log.deletion.grace.ms": 0,
        "remote.log.failed.deletions.topic": FAILED,
    }
    site = LiveSite(kafka, tmp_path, (TOPIC,), settings)
    topic_id = kafka.client.create_topic(TOPIC, config=SMALL_SEGMENTS | LONG)
    kafka.client.create_topic(FAILED, config={"cleanup.policy": "compact"})
    kafka.client.produce(TOPIC, varied_records(600, seed=1), batch_num_messages=20)
    while site.copied():
        pass
    with site.open() as remote_log:
        kept = finished(remote_log)[1]
    with monkeypatch.context() as guarded:
        guarded.setattr(LocalDirectory, "delete_many", refusing(LocalDirectory.delete_many, kept.segment_id.id))
        expired = site.run("expire", "--json")

    assert expired.exit_code == 1
    [record] = kafka.client.consume_all(FAILED)
    found = json.loads(record.value or b"")
    assert record.key == kept.segment_id.id.encode()
    assert "guarded by hand" in found.pop("error")
    assert found.pop("failedAtMs") > kept.event_timestamp
    assert found == {
        "version": 1,
        "clusterId": kafka.client.cluster_id(),
        "topic": TOPIC,
        "topicId": topic_id,
        "partition": 0,
        "segmentId": kept.segment_id.id,
        "startOffset": kept.start_offset,
        "endOffset": kept.end_offset,
        "segmentSizeInBytes": kept.size,
    }
    assert len(site.run("failed-deletions", "--json").rows) == 1

    again = site.run("expire", "--json")

    assert again.exit_code == 0, again.err
    assert len(kafka.client.consume_all(FAILED)) == 1
    assert site.run("failed-deletions").exit_code == 0
