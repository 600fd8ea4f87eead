"""The read service on a topic whose segments are compressed and encrypted, in several chunks each."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.key_rings import ring_file, ring_of_three
from support.read_service_site import CLOSED_SEGMENTS, ReadServiceSite
from support.remote_logs import BATCH_BYTES, ENABLED, RemoteLogFiles, a_remote_log, copy, record, unsynced
from tiered_storage.kafka_log.records.record_batch import read_records
from tiered_storage.remote_log.storage.transforms.encoding import MAGIC

RECORDS = "/topics/{}/partitions/0/records"
DATA = "/topics/orders/partitions/0/segments/{}/data"
ENCODED = {**ENABLED, "remote.encryption.enabled": True, "remote.compression.enabled": True}


@pytest.fixture(scope="module")
def encrypted_files(tmp_path_factory: pytest.TempPathFactory) -> RemoteLogFiles:
    """The remote log of a ReadServiceSite, with orders encrypted and payments as Kafka wrote it."""
    root = tmp_path_factory.mktemp("encrypted")
    files = a_remote_log(
        root,
        CLOSED_SEGMENTS,
        topics={"orders": ENCODED, "payments": ENABLED},
        rsm_config_encryption_key_ring_file=str(ring_of_three(root / "keys")),
        rsm_config_encryption_key_pair_id="first",
    )
    with pytest.MonkeyPatch.context() as patch, unsynced(), files.open() as remote_log:
        # Otherwise such small segments would be one chunk each.
        patch.setattr("tiered_storage.remote_log.storage.transforms.chain.MIN_CHUNK_BYTES", 100)
        assert copy(remote_log).is_whole
    stored = [path.read_bytes() for path in files.objects(".log")]
    assert [content[:4] == MAGIC for content in stored] == [True, True, True, False]
    assert all(content.count(MAGIC) > 1 for content in stored[:3])
    return files


@pytest.fixture(scope="module")
def encrypted(logins: None, encrypted_files: RemoteLogFiles) -> Iterator[ReadServiceSite]:
    with ReadServiceSite.serve(encrypted_files) as site:
        yield site


@pytest.fixture
def without_key(logins: None, encrypted_files: RemoteLogFiles, tmp_path: Path) -> Iterator[ReadServiceSite]:
    """The same with a key ring that has lost the key of orders."""
    key_files = {"third": {"key.file": str(encrypted_files.root / "keys" / "third.key")}}
    properties = {
        **encrypted_files.properties,
        "rsm.config.encryption.key.ring.file": str(ring_file(tmp_path, key_files)),
    }
    with ReadServiceSite.serve(RemoteLogFiles(encrypted_files.root, properties=properties)) as site:
        yield site


def offsets_in_json(content: bytes) -> list[int]:
    found: list[dict[str, Any]] = [json.loads(line) for line in content.splitlines()]
    assert all(base64.b64decode(each["value"]) == record(each["offset"]).value for each in found)
    return [each["offset"] for each in found]


def offsets_in_arrow(content: bytes) -> list[int]:
    found = pa.ipc.open_stream(content).read_all()
    offsets: list[int] = found["offset"].to_pylist()
    assert found["value"].to_pylist() == [record(offset).value for offset in offsets]
    return offsets


def offsets_in_batches(content: bytes) -> list[int]:
    found = [
        each
        for position in range(0, len(content), BATCH_BYTES)
        for each in read_records(content[position : position + BATCH_BYTES])
    ]
    offsets = [each.offset for each in found]
    assert found == [record(offset) for offset in offsets]
    return offsets


@pytest.mark.parametrize(
    ("form", "offsets_in", "first"),
    [("json", offsets_in_json, 7), ("arrow", offsets_in_arrow, 7), ("batches", offsets_in_batches, 5)],
)
def test_records_are_decrypted_in_every_form(
    encrypted: ReadServiceSite, form: str, offsets_in: Callable[[bytes], list[int]], first: int
) -> None:
    answer = encrypted.get(f"{RECORDS.format('orders')}?offset=7&format={form}")
    assert answer.status_code == 200, answer.text
    assert offsets_in(answer.content) == list(range(first, 35))


def test_an_encrypted_segment_is_given_as_kafka_wrote_it(encrypted: ReadServiceSite, site: ReadServiceSite) -> None:
    for encoded, plain in zip(encrypted.segments(), site.files.objects(".log"), strict=False):
        answer = encrypted.get(DATA.format(encoded.segment_id.id))
        assert (answer.status_code, answer.content) == (200, plain.read_bytes())
        assert answer.headers["content-length"] == str(len(answer.content))


@pytest.mark.parametrize("first", [0, 1, 399, 700])
@pytest.mark.parametrize("length", [1, 100, 600])
def test_a_range_of_an_encrypted_segment_counts_the_bytes_that_kafka_wrote(
    encrypted: ReadServiceSite, site: ReadServiceSite, first: int, length: int
) -> None:
    whole = site.files.objects(".log")[0].read_bytes()
    path = DATA.format(encrypted.segments()[0].segment_id.id)
    answer = encrypted.get(path, headers={"Range": f"bytes={first}-{first + length - 1}"})
    assert answer.status_code == 206
    wanted = whole[first : first + length]
    assert answer.headers["content-range"] == f"bytes {first}-{first + len(wanted) - 1}/{len(whole)}"
    assert answer.content == wanted


def test_a_lost_key_is_a_502_that_names_segment_and_key_and_stops_no_other_topic(without_key: ReadServiceSite) -> None:
    segment = without_key.segments()[0].segment_id
    for path in (RECORDS.format("orders"), DATA.format(segment.id)):
        answer = without_key.get(path)
        assert (answer.status_code, answer.headers.get("retry-after")) == (502, None)
        problem = answer.json()
        assert (problem["title"], problem["retriable"]) == ("EncryptionKey", False)
        assert str(segment) in problem["detail"]
        assert "no key first" in problem["detail"]
    # Errors name no segment and no key to people without the right to read the topic.
    assert "first" not in without_key.get(DATA.format(segment.id), name="watcher").text

    plain = without_key.get(RECORDS.format("payments"), role="OP")
    assert offsets_in_json(plain.content) == list(range(15))
    local = without_key.get(f"{RECORDS.format('orders')}?offset=20")
    assert offsets_in_json(local.content) == list(range(20, 35))
