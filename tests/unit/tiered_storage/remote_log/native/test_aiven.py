"""Read what Aiven's plugin wrote: chunks that are plain, compressed, encrypted, or both."""

from __future__ import annotations

import base64
import itertools
import json
import os
import struct
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from support.aiven_tier import KEY_PAIR, AivenWriter, an_aiven_tier, encoded_sizes
from support.command_line import mentions, run_on
from support.remote_logs import NOW, ORDERS_0, flip_bit, record, records
from tiered_storage.errors import LaterVersionError, RemoteObjectCorruptError, RemoteObjectNotFoundError
from tiered_storage.remote_log.native.aiven_manifest import AivenManifest, name_fields
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

WRITERS = [
    AivenWriter(size, compresses, encrypts, prefix, names_in_metadata=named)
    for (compresses, encrypts), (size, prefix, named) in itertools.product(
        itertools.product([False, True], repeat=2), [(300, "tiered/", True), (100_000, "a-prefix-", False)]
    )
]


@pytest.mark.parametrize("writer", WRITERS, ids=str)
def test_every_record_is_read_by_offset_and_time(tmp_path: Path, writer: AivenWriter) -> None:
    tier = an_aiven_tier(tmp_path, writer)
    with tier.files.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        for start in (0, 9, 10, 29, 30):
            assert list(reader.records(ORDERS_0, start)) == records(start, 35)
        found = [reader.offsets(ORDERS_0, record(offset).timestamp) for offset in range(35)]
    assert [each and each.offset for each in found] == list(range(35))


@pytest.mark.parametrize("writer", WRITERS, ids=str)
def test_a_deep_audit_finds_nothing_and_then_the_damage(tmp_path: Path, writer: AivenWriter) -> None:
    tier = an_aiven_tier(tmp_path, writer)
    sound = run_on(tier.files, "audit", "--deep", "--json")
    log = tier.object_of(tier.segments[1])
    flip_bit(log, log.stat().st_size // 2)
    tier.object_of(tier.segments[2], "rsm-manifest").unlink()

    damaged = run_on(tier.files, "audit", "--deep", "--json")

    assert (sound.exit_code, sound.rows) == (0, []), sound.err
    assert damaged.exit_code == 1
    assert {
        (row["kind"], tier.segments[at].segment_id.id in str(row)) for at, row in zip((1, 2), damaged.rows, strict=True)
    } == {
        ("wrong checksum", True),
        ("missing object", True),
    }


def test_names_that_the_metadata_keep_are_no_orphans(tmp_path: Path) -> None:
    """The brokers' key.prefix is not among the settings, and the objects are old enough to count."""
    tier = an_aiven_tier(tmp_path, AivenWriter(prefix="tiered/", names_in_metadata=True))
    foreign = tier.remote / "tiered" / "foreign"
    foreign.write_bytes(b"x")
    for path in tier.remote.rglob("*"):
        os.utime(path, (NOW / 1000, NOW / 1000))

    audited = run_on(tier.files, "audit", "--json")

    assert [row["kind"] for row in audited.rows] == ["unreferenced object"]
    assert "tiered/foreign" in str(audited.rows)


def test_a_lost_object_of_indexes_never_reads_as_nothing_aborted(tmp_path: Path) -> None:
    tier = an_aiven_tier(tmp_path, AivenWriter(names_in_metadata=False))
    manifest = tier.object_of(tier.segments[0], "rsm-manifest")
    content = json.loads(manifest.read_text())
    content["segmentIndexes"]["transaction"] = content["segmentIndexes"]["offset"]
    manifest.write_text(json.dumps(content))
    tier.object_of(tier.segments[0], "indexes").unlink()

    with tier.files.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        storage = remote_log.context.storage
        for kind in (IndexKind.TRANSACTION, IndexKind.PRODUCER_SNAPSHOT):
            with pytest.raises(RemoteObjectCorruptError):
                storage.fetch_index(tier.segments[0], kind)
        assert list(reader.records(ORDERS_0, 0)) == records(0, 35)
        tier.object_of(tier.segments[0]).unlink()
        with pytest.raises(RemoteObjectNotFoundError):
            storage.fetch_index(tier.segments[0], IndexKind.TRANSACTION)


@pytest.mark.parametrize("size", [300, 100_000])
def test_a_segment_that_brokers_deleted_never_reads_as_nothing_aborted(tmp_path: Path, size: int) -> None:
    """Manifests and chunks are kept in memory too; the deletion has not come to the manifest yet."""
    tier = an_aiven_tier(tmp_path, AivenWriter(size, compresses=size > 300, names_in_metadata=False))
    with tier.files.open() as remote_log:
        storage, segment = remote_log.context.storage, tier.segments[0]
        storage.fetch_index(segment, IndexKind.REMOTE_LOG_INDEX)
        for suffix in ("log", "indexes"):
            tier.object_of(segment, suffix).unlink()

        for kind in (IndexKind.TRANSACTION, IndexKind.REMOTE_LOG_INDEX):
            with pytest.raises(RemoteObjectNotFoundError):
                storage.fetch_index(segment, kind)


def test_without_its_private_key_a_segment_is_refused(tmp_path: Path) -> None:
    tier = an_aiven_tier(tmp_path, AivenWriter(encrypts=True))
    del tier.files.properties[f"rsm.config.encryption.key.pairs.{KEY_PAIR}.private.key.file"]

    ended = run_on(tier.files, "read", "orders", 0)

    assert ended.exit_code == 1
    assert mentions(ended.err, f"rsm.config.encryption.key.pairs.{KEY_PAIR}.private.key.file")


def test_a_wrong_private_key_is_refused(tmp_path: Path) -> None:
    tier = an_aiven_tier(tmp_path, AivenWriter(encrypts=True))
    manifest = tier.object_of(tier.segments[0], "rsm-manifest")
    content = json.loads(manifest.read_text())
    content["encryption"]["dataKey"] = f"{KEY_PAIR}:{'A' * 344}"
    manifest.write_text(json.dumps(content))

    ended = run_on(tier.files, "read", "orders", 0)

    assert ended.exit_code == 1
    assert mentions(ended.err, KEY_PAIR, "does not unwrap")


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=30))
def test_sizes_of_chunks_are_read_as_written(sizes: list[int]) -> None:
    manifest = AivenManifest.parse(json.dumps(_manifest(sizes)).encode(), "a manifest")

    assert list(manifest.stored_sizes) == sizes
    assert manifest.stored_bytes == sum(sizes)


@pytest.mark.parametrize("log_bytes", [1_000, 2**31 - 1])
@pytest.mark.parametrize("kind", ["fixed", "variable"])
def test_a_damaged_manifest_does_not_use_up_the_memory(kind: str, log_bytes: int) -> None:
    """It claims up to two billion chunks of one byte, with sizes of no bytes each."""
    document = _manifest([])
    frame = zstandard.ZstdCompressor().compress(struct.pack(">iibi", 2**31 - 1, 7, 0, 7))
    document["chunkIndex"] = {
        "type": kind,
        "originalChunkSize": 1 if kind == "fixed" else 100,
        "originalFileSize": log_bytes,
        "transformedChunks": base64.b64encode(frame).decode(),
        "transformedChunkSize": 1,
        "finalTransformedChunkSize": 1,
    }
    raw = json.dumps(document).encode()

    tracemalloc.start()
    try:
        if (kind, log_bytes) == ("fixed", 1_000):
            assert AivenManifest.parse(raw, "a manifest").stored_bytes == log_bytes
        else:
            with pytest.raises(RemoteObjectCorruptError):
                AivenManifest.parse(raw, "a manifest")
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200))
def test_random_custom_metadata_are_refused_or_read(raw: bytes) -> None:
    try:
        prefix, main = name_fields(raw)
    except RemoteObjectCorruptError:
        return
    assert prefix is None or isinstance(prefix, str)
    assert main is None or isinstance(main, str)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists), st.data())
def test_a_manifest_with_a_wrong_member_is_refused(wrong: object, data: st.DataObject) -> None:
    manifest = _manifest([10, 20])
    name = data.draw(st.sampled_from(["chunkIndex", "segmentIndexes", "compression", "version"]))
    if wrong == manifest[name] or (isinstance(wrong, bool) and name == "compression"):
        return
    manifest[name] = wrong

    with pytest.raises((RemoteObjectCorruptError, LaterVersionError)):
        AivenManifest.parse(json.dumps(manifest).encode(), "a manifest")


def _manifest(sizes: list[int]) -> dict[str, object]:
    frame = zstandard.ZstdCompressor().compress(encoded_sizes(sizes))
    return {
        "version": "1",
        "chunkIndex": {
            "type": "variable",
            "originalChunkSize": 100,
            "originalFileSize": 100 * len(sizes),
            "transformedChunks": base64.b64encode(frame).decode(),
        },
        "segmentIndexes": {"offset": {"position": 0, "size": 8}, "transaction": None},
        "compression": True,
    }
