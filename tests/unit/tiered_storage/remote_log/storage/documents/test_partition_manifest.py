"""What the store knows of a partition beside its segments."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.remote_segments import partition
from tiered_storage.errors import LaterVersionError, RemoteObjectCorruptError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.model import PartitionDeleteState, PartitionState
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.documents.object_names import HIGHEST_NUMBER, partition_manifests_folder
from tiered_storage.remote_log.storage.documents.partition_manifest import (
    MAX_MARKED,
    PartitionManifest,
    PartitionManifests,
)

INT64 = st.integers(0, 2**63 - 1)
IDS = st.lists(st.from_regex(r"[A-Za-z0-9_-]{22}", fullmatch=True), max_size=5).map(tuple)
STATES = st.builds(
    PartitionState,
    st.none() | INT64,
    st.lists(st.builds(EpochEntry, st.integers(0, 2**31 - 1), INT64), max_size=5).map(tuple),
    st.none() | st.sampled_from(PartitionDeleteState),
)
STATE = PartitionState(17, (EpochEntry(0, 0), EpochEntry(3, 40)), PartitionDeleteState.MARKED)
DOCUMENT = PartitionManifest(partition(), 5, STATE, 1_763_700_000_000)


@pytest.fixture
def manifests(tmp_path: Path) -> PartitionManifests:
    return PartitionManifests(LocalDirectory(tmp_path))


def names_in(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / partition_manifests_folder(partition())).iterdir())


@settings(deadline=None)
@given(STATES, st.integers(0, HIGHEST_NUMBER), INT64, IDS)
def test_a_document_is_read_as_it_was_written(
    state: PartitionState, number: int, written_at: int, marked: tuple[str, ...]
) -> None:
    document = PartitionManifest(partition(), number, state, written_at, marked)

    assert PartitionManifest.parse(document.to_bytes(), "here") == document


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format_version", 0),
        ("topic", ""),
        ("partition", 2**31),
        ("fencing_number", -1),
        ("log_start_offset", "0"),
        ("leader_epochs", [[0]]),
        ("leader_epochs", None),
        ("delete_state", "GONE"),
        ("marked_segments", "all"),
        ("marked_segments", ["../../elsewhere"]),
        ("marked_segments", [7]),
        ("written_at", None),
    ],
)
def test_a_document_that_is_broken_is_refused(field: str, value: object) -> None:
    content = json.loads(DOCUMENT.to_bytes()) | {field: value}

    with pytest.raises(RemoteObjectCorruptError, match=r"s3://here: .*(version|" + field + ")"):
        PartitionManifest.parse(json.dumps(content).encode(), "s3://here")


def test_a_document_of_a_later_version_is_distinguished_from_a_broken_one() -> None:
    content = json.loads(DOCUMENT.to_bytes()) | {"format_version": 2, "topic": None}

    with pytest.raises(LaterVersionError, match="s3://here"):
        PartitionManifest.parse(json.dumps(content).encode(), "s3://here")


def test_a_manifest_of_an_earlier_release_names_no_marked_segments() -> None:
    content = json.loads(DOCUMENT.to_bytes())
    del content["marked_segments"]

    assert PartitionManifest.parse(json.dumps(content).encode(), "here") == DOCUMENT


def test_as_many_as_may_be_marked_fit_into_what_is_read_of_a_document(manifests: PartitionManifests) -> None:
    ids = tuple(f"{number:022}" for number in range(MAX_MARKED))
    manifests.write(replace(DOCUMENT, marked=ids))

    found = manifests.read(partition())
    assert found is not None
    assert found.marked == ids


def test_the_latest_of_several_holders_counts_and_clears_up(manifests: PartitionManifests, tmp_path: Path) -> None:
    assert manifests.read(partition()) is None
    assert manifests.newest_number(partition()) is None

    manifests.write(DOCUMENT)
    late = replace(DOCUMENT, fencing_number=4, state=PartitionState())
    manifests.write(late)
    assert manifests.read(partition()) == DOCUMENT
    assert names_in(tmp_path) == [f"{4:020}.json", f"{5:020}.json"]

    folder = tmp_path / partition_manifests_folder(partition())
    (folder / f"{5:020}.json.0123456789abcdef.tmp").write_bytes(b"half")
    (folder / "notes.txt").write_bytes(b"somebody else's")
    newer = replace(DOCUMENT, fencing_number=2**32, state=PartitionState(40))
    manifests.write(newer)
    assert manifests.newest_number(partition()) == 2**32
    assert manifests.read(partition()) == newer
    assert names_in(tmp_path) == [f"{2**32:020}.json", "notes.txt"]
    assert manifests.read(partition(1)) is None


def test_unfinished_writes_do_not_count(manifests: PartitionManifests, tmp_path: Path) -> None:
    manifests.write(DOCUMENT)
    (tmp_path / f"{replace(DOCUMENT, fencing_number=9).name}.0123456789abcdef.tmp").write_bytes(b"half")

    assert manifests.newest_number(partition()) == 5


@pytest.mark.parametrize("other", [{"topic_id_partition": partition(1)}, {"fencing_number": 6}])
def test_a_document_in_anothers_place_is_refused(
    manifests: PartitionManifests, tmp_path: Path, other: dict[str, object]
) -> None:
    manifests.write(DOCUMENT)
    (tmp_path / DOCUMENT.name).write_bytes(replace(DOCUMENT, **other).to_bytes())  # type: ignore[arg-type]

    with pytest.raises(RemoteObjectCorruptError, match="belongs elsewhere"):
        manifests.read(partition())
