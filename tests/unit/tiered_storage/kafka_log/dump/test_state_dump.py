from __future__ import annotations

from pathlib import Path

import pytest

from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry, write_producer_snapshot
from unit.tiered_storage.kafka_log.dump.dumps import dumped, problems, rows

TOPIC_ID = "cxfmXdFdRF2-6WITmvYjdA"


def test_producers_of_a_snapshot_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000042.snapshot"
    write_producer_snapshot(
        path,
        [
            ProducerSnapshotEntry(1, 2, 3, 41, 5, 1000, 6, 30),
            ProducerSnapshotEntry(7, 0, -1, -1, 0, 2000, 0, -1),
        ],
    )
    events = dumped(path)
    assert rows(events) == [
        {
            "producerId": 1,
            "producerEpoch": 2,
            "coordinatorEpoch": 6,
            "currentTxnFirstOffset": 30,
            "lastTimestamp": 1000,
            "firstSequence": (1 << 31) - 2,
            "lastSequence": 3,
            "lastOffset": 41,
            "offsetDelta": 5,
        },
        {
            "producerId": 7,
            "producerEpoch": 0,
            "coordinatorEpoch": 0,
            "currentTxnFirstOffset": None,
            "lastTimestamp": 2000,
            "firstSequence": None,
            "lastSequence": None,
            "lastOffset": None,
            "offsetDelta": None,
        },
    ]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"!")
    assert rows(dumped(path)) == []
    [(name, position, problem)] = problems(dumped(path))
    assert (name, position, "checksum" in problem) == (path.name, 6, True)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "leader-epoch-checkpoint",
            "0\n2\n0 0\n3 17\n",
            [{"epoch": 0, "startOffset": 0}, {"epoch": 3, "startOffset": 17}],
        ),
        (
            "recovery-point-offset-checkpoint",
            "0\n2\norders 0 17\n42 1 4\n",
            [{"topic": "orders", "partition": 0, "offset": 17}, {"topic": "42", "partition": 1, "offset": 4}],
        ),
        ("log-start-offset-checkpoint", "", []),
        ("partition.metadata", f"version: 0\ntopic_id: {TOPIC_ID}", [{"version": 0, "topic_id": TOPIC_ID}]),
        (
            "meta.properties",
            f"version=1\ncluster.id=C\nnode.id=5\ndirectory.id={TOPIC_ID}\n",
            [{"version": 1, "cluster.id": "C", "node.id": 5, "directory.id": TOPIC_ID}],
        ),
        (
            "meta.properties",
            "broker.id=5\n",
            [{"version": 0, "cluster.id": None, "broker.id": 5, "directory.id": None}],
        ),
        (".kafka_cleanshutdown", '{"version":0,"brokerEpoch":12}', [{"version": 0, "brokerEpoch": 12}]),
    ],
)
def test_checkpoints_and_properties_are_shown(
    tmp_path: Path, name: str, content: str, expected: list[dict[str, object]]
) -> None:
    path = tmp_path / name
    path.write_text(content)
    events = dumped(path)
    assert rows(events) == expected
    assert len(events) == len(expected)


@pytest.mark.parametrize(
    ("name", "content", "expected", "position"),
    [
        ("leader-epoch-checkpoint", "0\n2\n3 17\n2 20\n", [{"epoch": 3, "startOffset": 17}], 9),
        ("leader-epoch-checkpoint", "0\n2\n0 0\n3\n", [{"epoch": 0, "startOffset": 0}], 8),
        ("leader-epoch-checkpoint", "1\n1\n0 0\n", [], 0),
        ("replication-offset-checkpoint", "0\n3\na 0 17\na 0 18\n", [], 2),
        ("cleaner-offset-checkpoint", "0\n2\na 0 17\na 0 18\n", [{"topic": "a", "partition": 0, "offset": 17}], 11),
        ("partition.metadata", "topic_id", [], 0),
        ("meta.properties", "#\nversion=2\n", [], 2),
        (".kafka_cleanshutdown", "{", [], 1),
    ],
)
def test_broken_files_are_shown_up_to_the_break(
    tmp_path: Path, name: str, content: str, expected: list[dict[str, object]], position: int
) -> None:
    path = tmp_path / name
    path.write_text(content)
    events = dumped(path)
    assert rows(events) == expected
    assert [(found, at) for found, at, _ in problems(events)] == [(name, position)]


def test_the_topic_of_the_clusters_metadata_may_have_the_reserved_id(tmp_path: Path) -> None:
    for name, is_sound in (("__cluster_metadata-0", True), ("orders-0", False)):
        path = tmp_path / name / "partition.metadata"
        path.parent.mkdir()
        path.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
        assert bool(rows(dumped(path))) is is_sound
        assert bool(problems(dumped(path))) is not is_sound
