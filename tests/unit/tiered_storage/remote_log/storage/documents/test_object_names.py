"""What objects are called, and what their names tell."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.remote_segments import TOPIC_ID, partition
from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.remote_log.model import RemoteLogSegmentId, TopicIdPartition
from tiered_storage.remote_log.storage.clients.object_client import check_object_name, is_temporary_name, temporary_name
from tiered_storage.remote_log.storage.documents.object_names import (
    HIGHEST_NUMBER,
    ObjectKind,
    PartitionManifestName,
    SegmentObjectName,
    parse_object_name,
    parse_partition_folder,
    parse_partition_manifest_name,
    partition_folder,
    partition_manifests_folder,
    segment_object_names,
)

SEGMENT_ID = encode_uuid(bytes(range(100, 116)))
PLAIN_NAMES = st.text("abcXYZ019._-", min_size=1, max_size=30).filter(lambda name: name not in {".", ".."})
UUIDS = st.binary(min_size=16, max_size=16).filter(lambda raw: any(raw[:-1])).map(encode_uuid)
SEGMENT_IDS = st.builds(
    RemoteLogSegmentId, st.builds(TopicIdPartition, PLAIN_NAMES, UUIDS, st.integers(0, 2**31 - 1), PLAIN_NAMES), UUIDS
)


def test_names_begin_with_the_partition_and_the_base_offset() -> None:
    names = segment_object_names(RemoteLogSegmentId(partition(3, topic="pay-ments"), SEGMENT_ID), 42)
    assert names.data == f"test-cluster/pay-ments-{TOPIC_ID}/3/00000000000000000042-{SEGMENT_ID}.log"
    assert names.indexes == f"test-cluster/pay-ments-{TOPIC_ID}/3/00000000000000000042-{SEGMENT_ID}.indexes"
    assert names.commit_marker == f"test-cluster/pay-ments-{TOPIC_ID}/3/00000000000000000042-{SEGMENT_ID}.commit"


@settings(deadline=None)
@given(SEGMENT_IDS, st.integers(0, 2**63 - 1), st.sampled_from(ObjectKind), st.booleans())
def test_a_name_is_parsed_into_its_parts(
    segment_id: RemoteLogSegmentId, base_offset: int, kind: ObjectKind, temporary: bool
) -> None:
    names = segment_object_names(segment_id, base_offset)
    name = f"{names.stem}.{kind}"
    if temporary:
        name = temporary_name(name, "0123456789abcdef")
    check_object_name(name)
    parsed = parse_object_name(name)
    assert parsed == SegmentObjectName(segment_id, base_offset, kind, temporary)
    assert parsed is not None
    assert parsed.segment_id.topic_id_partition.topic == segment_id.topic_id_partition.topic
    assert parsed.names == names
    assert is_temporary_name(name) == temporary


@settings(deadline=None)
@given(SEGMENT_IDS, st.integers(0, HIGHEST_NUMBER), st.booleans())
def test_the_name_of_a_partition_manifest_is_parsed_into_its_parts(
    segment_id: RemoteLogSegmentId, number: int, temporary: bool
) -> None:
    key = segment_id.topic_id_partition
    document = PartitionManifestName(key, number, ".0123456789abcdef.tmp" if temporary else "")

    assert document.listed_as == document.name + document.suffix
    assert document.name.startswith(partition_manifests_folder(key) + "/")
    check_object_name(document.listed_as)
    assert parse_partition_manifest_name(document.listed_as) == document
    assert parse_partition_folder(document.listed_as) == key
    assert parse_object_name(document.listed_as) is None
    assert document.temporary == temporary


def test_the_names_of_one_segment_under_two_names_of_its_topic_differ() -> None:
    ids = [RemoteLogSegmentId(TopicIdPartition("a-cluster", TOPIC_ID, 0, topic), TOPIC_ID) for topic in ("old", "new")]
    assert ids[0] == ids[1]
    old, new = (segment_object_names(each, 7) for each in ids)
    assert (old.data.replace("/old-", "/new-"), old.data) == (new.data, new.data.replace("/new-", "/old-"))


@pytest.mark.parametrize("ending", ["1.json", f"{7:020}.txt", f"{7:020}.json/x", f"{7:020}.json.tmp", f"x{7:020}.json"])
def test_other_objects_are_not_taken_for_a_partitions_document(ending: str) -> None:
    assert parse_partition_manifest_name(f"{partition_manifests_folder(partition())}/{ending}") is None
    assert parse_partition_manifest_name(f"state/{7:020}.json") is None


@settings(deadline=None)
@given(st.one_of(st.text(max_size=200), st.from_regex(re.compile(r"[a-z./]+-[A-Za-z0-9_-]{22}/[0-9]+/.*"))))
def test_any_text_is_a_segments_name_or_foreign(name: str) -> None:
    parsed = parse_object_name(name)
    assert parsed is None or f"{parsed.names.stem}.{parsed.kind}" == name


@pytest.mark.parametrize(
    "name",
    [
        "store.json",
        "",
        f"test-cluster/orders-{TOPIC_ID}/0/00000000000000000042-{SEGMENT_ID}.txt",
        f"test-cluster/orders-{TOPIC_ID}/0/00000000000000000042-{SEGMENT_ID}.log\n",
        f"test-cluster/orders-{TOPIC_ID}/00/00000000000000000042-{SEGMENT_ID}.log",
        f"test-cluster/orders-{TOPIC_ID}/0/42-{SEGMENT_ID}.log",
        f"test-cluster/orders-{TOPIC_ID}/0/99999999999999999999-{SEGMENT_ID}.log",
        f"test-cluster/orders-{TOPIC_ID}/2147483648/00000000000000000042-{SEGMENT_ID}.log",
        f"test-cluster/orders-{TOPIC_ID}/٣/00000000000000000042-{SEGMENT_ID}.log",
        f"../orders-{TOPIC_ID}/0/00000000000000000042-{SEGMENT_ID}.log",
        f"test-cluster/..-{TOPIC_ID}/0/00000000000000000042-{SEGMENT_ID}.log",
        f"more/test-cluster/orders-{TOPIC_ID}/0/00000000000000000042-{SEGMENT_ID}.log",
        f"test-cluster/orders-{TOPIC_ID}/0/00000000000000000042-{SEGMENT_ID}.log.0123.tmp",
    ],
)
def test_other_names_are_foreign(name: str) -> None:
    assert parse_object_name(name) is None


@pytest.mark.parametrize("hostile", ["", ".", "..", "../..", "a/b", "/", "a\0", "a\n", "a b", "ü", "x" * 250, "a\\b"])
def test_ids_and_topics_that_lead_elsewhere_are_refused(hostile: str) -> None:
    with pytest.raises(ConfigurationError, match="cluster id"):
        partition_folder(TopicIdPartition(hostile, TOPIC_ID, 0, "orders"))
    with pytest.raises(ConfigurationError, match="topic"):
        partition_folder(TopicIdPartition("test-cluster", TOPIC_ID, 0, hostile))
    with pytest.raises(ConfigurationError, match="topic id"):
        partition_folder(TopicIdPartition("test-cluster", hostile, 0, "orders"))
    with pytest.raises(ConfigurationError, match="segment id"):
        segment_object_names(RemoteLogSegmentId(partition(), hostile), 0)


def test_a_cluster_cannot_be_called_like_the_stores_identity() -> None:
    with pytest.raises(ConfigurationError, match=r"store\.json"):
        partition_folder(TopicIdPartition("store.json", TOPIC_ID, 0, "orders"))


@pytest.mark.parametrize(("number", "base_offset"), [(-1, 0), (2**31, 0), (0, -1), (0, 2**63)])
def test_numbers_that_kafka_does_not_have_are_refused(number: int, base_offset: int) -> None:
    with pytest.raises(ConfigurationError):
        segment_object_names(RemoteLogSegmentId(partition(number), SEGMENT_ID), base_offset)
