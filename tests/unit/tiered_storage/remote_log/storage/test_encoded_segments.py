from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from support.key_rings import key_ring
from support.remote_segments import copied, segment_bytes, segment_data, segment_metadata
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.remote_log.storage.transforms.aes_gcm import TAG_BYTES
from tiered_storage.remote_log.storage.transforms.chain import CHUNK_BYTES
from tiered_storage.remote_log.storage.transforms.encoding import HEAD_BYTES, Encoding

CONTENT = segment_bytes(9 * CHUNK_BYTES + 12345)
STORED_CHUNK = CHUNK_BYTES + HEAD_BYTES + TAG_BYTES
MIB = 1 << 20


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The kind and the size in bytes of each object that is read while a test runs."""
    found: list[tuple[str, int]] = []
    get_range = LocalDirectory.get_range

    def noted(client: LocalDirectory, name: str, start: int, length: int) -> bytes:
        found.append((name.rpartition(".")[2], length))
        return get_range(client, name, start, length)

    monkeypatch.setattr(LocalDirectory, "get_range", noted)
    return found


@pytest.mark.parametrize("length", [1, 1000, CHUNK_BYTES, 3 * MIB, 8 * MIB])
@pytest.mark.parametrize("start", [0, 7, CHUNK_BYTES - 1, CHUNK_BYTES, 5 * CHUNK_BYTES + 99])
def test_a_range_of_an_encrypted_segment_requests_its_chunks_alone_and_key_and_manifest_once(
    tmp_path: Path, requests: list[tuple[str, int]], start: int, length: int
) -> None:
    options = ObjectStoreOptions(key_ring=key_ring(tmp_path / "keys"))
    metadata = segment_metadata(len(CONTENT))
    data = replace(segment_data(CONTENT), encoding=Encoding(encryption=True))
    with closing(ObjectRemoteStorageManager.open(tmp_path.as_uri(), options)) as writer:
        finished = copied(metadata, writer.copy_log_segment_data(metadata, data))
    end = min(start + length, len(CONTENT))
    with closing(ObjectRemoteStorageManager.open(tmp_path.as_uri(), options)) as reader:
        for _ in range(2):
            requests.clear()
            assert b"".join(reader.fetch_log_segment(finished, start, end - 1)) == CONTENT[start:end]
            of_log = [size for kind, size in requests if kind == "log"]
            assert sum(of_log) <= end - start + 2 * STORED_CHUNK
            # Up to 4 MiB of chunks are read together.
            assert len(of_log) <= 1 + (end - start) // (3 * MIB)
        assert {kind for kind, _ in requests} == {"log"}, "key and manifest are kept"
