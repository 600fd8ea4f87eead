from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from confluent_kafka import KafkaError, KafkaException

from support.clocks import stamped
from support.remote_logs import ENABLED, RemoteLogFiles, a_copied_remote_log, segments_of, with_context
from tiered_storage.errors import ConfigurationError, MetadataUnavailableError, RemoteStorageError, TieredStorageError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Outcome, Step
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.retention import failed_deletions_topic
from tiered_storage.remote_log.retention.failed_deletions_topic import FailedDeletion, FailedDeletionsTopic
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage_airflow.demo_cluster.brokers import free_ports

TOPIC = "__delete_failed_remote_log_segments"


class StuckStore(ObjectRemoteStorageManager):
    """A store that deletes nothing."""

    def delete_segments(self, segments: Sequence[RemoteLogSegmentMetadata]) -> Mapping[str, TieredStorageError]:
        return {segment.segment_id.id: RemoteStorageError("access\ndenied") for segment in segments}


class SourceOfACluster(LogDirectorySource):
    """A source that also has the properties of a cluster's client."""

    @property
    def access(self) -> Mapping[str, str]:
        return {"bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}"}


def marked(tmp_path: Path, topic: str | None = TOPIC) -> RemoteLogFiles:
    """Lay a remote log out where three segments are marked for deletion, in two batches."""
    files = a_copied_remote_log(
        tmp_path,
        {("orders", 0): 3},
        topics={"orders": {**ENABLED, "retention.bytes": 1}},
        deletion_batch_segments=2,
        **({} if topic is None else {"remote_log_failed_deletions_topic": topic}),
    )
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
        remote_log.deletions.mark_expired(plans, "expire")
    return files


def beside_a_cluster(remote_log: RemoteLogManager, files: RemoteLogFiles) -> RemoteLogManager:
    source = SourceOfACluster((files.log_directory,))
    return stamped(with_context(remote_log, storage=StuckStore(LocalDirectory(files.store)), source=source))


def test_a_record_has_the_ids_and_the_reason(tmp_path: Path) -> None:
    with marked(tmp_path, None).open() as remote_log:
        segment = segments_of(remote_log)[1]

    failed = FailedDeletion(segment, 1_700_000_000_000, "access\ndenied")

    partition = segment.topic_id_partition
    assert failed.key == segment.segment_id.id.encode()
    assert json.loads(failed.value) == {
        "version": 1,
        "clusterId": partition.cluster_id,
        "topic": "orders",
        "topicId": partition.topic_id,
        "partition": 0,
        "segmentId": segment.segment_id.id,
        "startOffset": 10,
        "endOffset": 19,
        "segmentSizeInBytes": segment.size,
        "failedAtMs": 1_700_000_000_000,
        "error": "access denied",
    }


def test_what_fails_in_any_batch_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[FailedDeletion]] = []
    monkeypatch.setattr(FailedDeletionsTopic, "send", lambda _, failed: sent.append(list(failed)))
    files = marked(tmp_path)

    with files.open() as remote_log:
        report = beside_a_cluster(remote_log, files).deletions.delete_marked("delete")

    assert [[each.segment.start_offset for each in batch] for batch in sent] == [[0, 10], [20]]
    assert {each.error for batch in sent for each in batch} == {"access\ndenied"}
    assert len(report.failures) == 3


def test_a_cluster_that_does_not_answer_is_waited_for_once_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_deletions_topic, "DELIVERY_SECONDS", 1)
    files = marked(tmp_path)

    with files.open() as remote_log:
        report = beside_a_cluster(remote_log, files).deletions.delete_marked("delete")
        listed = list(remote_log.context.safety.failures())

    assert len(listed) == 3
    [of_the_topic] = [each for each in report.failures if not each.partition]
    assert TOPIC in of_the_topic.message


@pytest.mark.parametrize(
    "refused", [BufferError("queue full"), KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))]
)
def test_a_client_that_refuses_a_record_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Exception
) -> None:
    client = mock.Mock(**{"produce.side_effect": refused, "flush.return_value": 0})
    monkeypatch.setattr("confluent_kafka.Producer", lambda _: client)
    files = marked(tmp_path)

    with files.open() as remote_log:
        report = beside_a_cluster(remote_log, files).deletions.delete_marked("delete")

    [of_the_topic] = [each for each in report.failures if not each.partition]
    assert TOPIC in of_the_topic.message


def test_what_failed_is_listed_and_sent_though_the_metadata_are_away_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[FailedDeletion] = []
    monkeypatch.setattr(FailedDeletionsTopic, "send", lambda _, failed: sent.extend(failed))
    files = marked(tmp_path)

    def one_of(_: StuckStore, segments: Sequence[RemoteLogSegmentMetadata]) -> Mapping[str, TieredStorageError]:
        return {segments[0].segment_id.id: RemoteStorageError("access denied")}

    def away(_: object, steps: Sequence[Step]) -> Sequence[Outcome]:
        if steps:
            raise MetadataUnavailableError("the brokers are away")
        return []

    monkeypatch.setattr(StuckStore, "delete_segments", one_of)
    with files.open() as remote_log:
        stuck = beside_a_cluster(remote_log, files)
        monkeypatch.setattr(type(remote_log.context.segments), "update_remote_log_segments", away)
        with pytest.raises(MetadataUnavailableError):
            stuck.deletions.delete_marked("delete")
        listed = list(remote_log.context.safety.failures())

    assert len(listed) == len(sent) == 1


def test_without_the_setting_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FailedDeletionsTopic, "send")
    files = marked(tmp_path, None)

    with files.open() as remote_log:
        report = beside_a_cluster(remote_log, files).deletions.delete_marked("delete")

    assert len(report.failures) == 3


def test_a_topic_without_a_cluster_is_refused_before_anything_is_deleted(tmp_path: Path) -> None:
    files = marked(tmp_path)

    with files.open() as remote_log, pytest.raises(ConfigurationError, match=r"set bootstrap\.servers"):
        remote_log.deletions.delete_marked("delete")

    assert len(files.objects(".log")) == 3


def test_a_property_that_the_client_refuses_is_not_shown(tmp_path: Path) -> None:
    with marked(tmp_path, None).open() as remote_log:
        segment = segments_of(remote_log)[0]
    topic = FailedDeletionsTopic(TOPIC, {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "s3cr3t"})

    with pytest.raises(ConfigurationError) as refused:
        topic.send([FailedDeletion(replace(segment), 1, "away")])

    assert "s3cr3t" not in str(refused.value)
