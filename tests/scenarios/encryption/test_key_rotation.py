"""Keys rotate beside readers and other runs, and no key is written where somebody may find it."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from scenarios.encryption.encrypted_logs import keys_of, lose_key, orders_of
from support.command_line import run_on
from support.key_rings import RING
from support.remote_logs import (
    ORDERS_0,
    RemoteLogFiles,
    assert_clean,
    begin,
    carry_out,
    held_by,
    offsets_read,
    segments_of,
    unsynced,
)
from tiered_storage.errors import EncryptionKeyError
from tiered_storage.remote_log.jobs.groups import JobFolder
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager


def test_keys_rotate_and_the_old_key_can_be_removed(files: RemoteLogFiles) -> None:
    before = {path: path.read_bytes() for path in files.objects()}
    files.properties["rsm.config.encryption.key.pair.id"] = "third"
    planned = run_on(files, "rotate-keys", "--dry-run", "--json")
    assert (planned.exit_code, planned.document["due"], keys_of(planned)) == (0, 3, {"first": 3})
    assert {path: path.read_bytes() for path in files.objects()} == before
    done = run_on(files, "rotate-keys", "--json")
    assert (done.exit_code, done.document["rotated"], keys_of(done)) == (0, 3, {"third": 3})
    after = {path: path.read_bytes() for path in files.objects()}
    assert {path for path in after if after[path] != before[path]} == set(files.objects(".key"))
    again = run_on(files, "rotate-keys", "--json")
    assert (again.exit_code, again.document["rotated"], keys_of(again)) == (0, 0, {"third": 3})
    lose_key(files, "third")
    with files.open() as remote_log:
        assert_clean(remote_log)


def test_a_process_that_runs_all_along_reads_what_a_rotation_wraps_by_a_key_that_is_new(files: RemoteLogFiles) -> None:
    """As the read service does: its key ring is of the time when it began."""
    lose_key(files, "first")
    files.properties["log.dirs"] = []
    with files.open() as remote_log:
        lose_key(files, "first", "third")
        files.properties["rsm.config.encryption.key.pair.id"] = "third"
        assert run_on(files, "rotate-keys").exit_code == 0
        lose_key(files, "third")
        assert offsets_read(remote_log, 0) == list(range(30))


def test_a_rotation_that_was_interrupted_continues(files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.properties["rsm.config.encryption.key.pair.id"] = "third"
    with files.open() as remote_log:
        remote_log.context.storage.rewrap_key(segments_of(remote_log)[1])  # type: ignore[attr-defined]
    result = run_on(files, "rotate-keys", "--json")
    assert (result.document["due"], result.document["rotated"], keys_of(result)) == (2, 2, {"third": 3})


def test_a_rotation_leaves_what_another_run_holds_and_what_it_cannot_unwrap(files: RemoteLogFiles) -> None:
    files.properties["rsm.config.encryption.key.pair.id"] = "third"
    with files.open() as remote_log:
        lease = held_by(remote_log, "copy")
        result = run_on(files, "rotate-keys", "--json")
        assert (result.exit_code, keys_of(result)) == (1, {"first": 3})
        assert "orders-0" in result.document["left"][0]
        remote_log.context.leases.release(lease)
    orders_of(files, ".key")[0].unlink()
    a_flipped_bit_in_json(orders_of(files, ".key")[0])
    result = run_on(files, "rotate-keys", "--json")
    assert (result.exit_code, len(result.document["failures"]), result.document["rotated"]) == (1, 2, 1)
    assert ".key" in result.document["failures"][0]
    files.properties["rsm.config.encryption.key.pair.id"] = "fourth"
    result = run_on(files, "rotate-keys")
    assert (result.exit_code, "no key fourth" in result.err) == (1, True)


def test_a_rotation_that_lost_its_lease_replaces_no_further_key(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rotation that stood still must not wrap by a key that was removed since."""
    files.properties["rsm.config.encryption.key.pair.id"] = "third"
    with files.open() as remote_log:
        rewrap = ObjectRemoteStorageManager.rewrap_key

        def taken_over(storage: ObjectRemoteStorageManager, metadata: RemoteLogSegmentMetadata) -> None:
            rewrap(storage, metadata)
            files.clock.now += remote_log.context.settings.lease_duration_ms + 1
            held_by(remote_log, "another rotation")

        monkeypatch.setattr(ObjectRemoteStorageManager, "rewrap_key", taken_over)
        result = run_on(files, "rotate-keys", "--json")
    assert (result.exit_code, result.document["rotated"], keys_of(result)) == (1, 1, {"first": 2, "third": 1})
    assert "another rotation" in result.document["left"][0]


def a_flipped_bit_in_json(path: Path) -> None:
    document = json.loads(path.read_bytes())
    path.write_bytes(json.dumps({**document, "wrapped": "AAAA" + document["wrapped"][4:]}).encode().ljust(4096))


def test_no_key_is_in_a_file_of_a_job_or_in_an_argument(files: RemoteLogFiles) -> None:
    files.append(2)
    secrets = [(files.root / "keys" / "third.key").read_bytes()]
    pem = (files.root / "keys" / "first.pem").read_text()
    secrets += [line.encode() for line in pem.splitlines()[1:-1]]
    with unsynced(), files.open() as remote_log:
        carry_out(remote_log, begin(remote_log))
        access = remote_log.context.access(JobFolder.of(remote_log.context.work, "runs/test/1"))
        shown = " ".join(access.arguments) + repr(access) + repr(remote_log.context.options) + str(access.options)
    written = [path.read_bytes() for path in (files.root / "state").rglob("*") if path.is_file()]
    for secret in secrets:
        assert not any(secret in content for content in written)
        assert secret.decode("latin-1") not in shown
    ring = files.root / "keys" / RING
    # A worker that gets no keys, as a reader in Spark, reads the file that the settings name.
    with files.open() as remote_log, closing(access.store.open(ObjectStoreOptions())) as storage:
        assert b"".join(storage.fetch_log_segment(segments_of(remote_log)[0]))
    ring.unlink()
    with files.open() as remote_log:
        with pytest.raises(EncryptionKeyError):
            list(remote_log.context.storage.fetch_log_segment(segments_of(remote_log)[0]))
        storage = access.store.open(access.secrets.options)
        assert b"".join(storage.fetch_log_segment(segments_of(remote_log, ORDERS_0)[0]))
        storage.close()
