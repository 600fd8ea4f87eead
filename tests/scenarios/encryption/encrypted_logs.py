"""Remote logs whose segments are encrypted, for tests that damage them or lose their keys."""

from __future__ import annotations

from pathlib import Path

from support.command_line import CommandResult
from support.key_rings import ring_file
from support.remote_logs import ENABLED, RemoteLogFiles, segments_of
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

DAYS = 10**10
BOTH = {"remote.encryption.enabled": True, "remote.compression.enabled": True}
TOPICS = {"orders": {**ENABLED, **BOTH}, "clicks": dict(ENABLED)}
PARTITIONS = {("orders", 0): 3, ("clicks", 0): 2}


def lose_key(files: RemoteLogFiles, *left: str) -> None:
    """Leave only these keys in the key ring."""
    keys = {"first": {"private.key.file": "first.pem"}, "third": {"key.file": "third.key"}}
    ring_file(files.root / "keys", {name: keys[name] for name in left})


def manifests(files: RemoteLogFiles) -> list[Manifest]:
    with files.open() as remote_log:
        segments = [
            segment
            for partition in remote_log.context.segments.list_partitions()
            for segment in finished(segments_of(remote_log, partition))
        ]
        read = remote_log.context.storage.fetch_index
        return [Manifest.parse(read(segment, IndexKind.MANIFEST), "manifest") for segment in segments]


def codecs(files: RemoteLogFiles) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for manifest in manifests(files):
        found.setdefault(manifest.segment_id.topic_id_partition.topic, set()).add(manifest.encoding.codec)
    return found


def orders_of(remote_log_files: RemoteLogFiles, suffix: str) -> list[Path]:
    return [path for path in remote_log_files.objects(suffix) if "orders" in str(path)]


def keys_of(result: CommandResult) -> dict[str, int]:
    return {row["key"]: row["segments"] for row in result.rows}
