"""Check the key ring: that it can be read, that it is private, and that the active key can wrap and unwrap."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from tiered_storage.doctor.check import Check, note, ok, wrong
from tiered_storage.errors import RemoteStorageError
from tiered_storage.remote_log.storage.clients.aws_credentials import AwsIdentity
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.transforms.aes_gcm import new_data_key
from tiered_storage.remote_log.storage.transforms.aws_kms import KmsClients
from tiered_storage.remote_log.storage.transforms.key_ring import KeyRing
from tiered_storage.settings.settings import Settings

_NAME = "encryption"
_PROBE = "doctor"


def check_encryption(settings: Settings, options: ObjectStoreOptions) -> Iterator[Check]:
    """Yield findings on the key ring; a note if nothing is encrypted."""
    topics = [name for name, topic in settings.topics.items() if topic.remote_encryption_enabled]
    is_wanted = settings.rsm_config_encryption_enabled or bool(topics)
    path = settings.rsm_config_encryption_key_ring_file
    if path is None:
        if is_wanted:
            advice = "set rsm.config.encryption.key.ring.file; see docs/encryption.md"
            yield wrong(_NAME, "segments are to be encrypted, and there is no key ring: copies fail", advice)
        else:
            yield ok(_NAME, "there is no key ring: new segments are not encrypted")
        return
    ring = options.key_ring
    if ring.problem is not None:
        yield wrong(_NAME, ring.problem, "correct it: until then encrypted segments can be neither written nor read")
        return
    yield from _check_files(path, ring)
    yield from _check_active(ring, AwsIdentity(options).kms_client, is_wanted=is_wanted)


def _check_files(path: Path, ring: KeyRing) -> Iterator[Check]:
    files = [path, *(key.file for key in ring.keys.values() if key.file is not None and not key.is_public)]
    for file in files:
        if file.exists() and file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            rights = stat.filemode(file.stat().st_mode)
            yield wrong(_NAME, f"others on this machine may use {file} ({rights})", f"chmod go= {file}")
    for key in ring.keys.values():
        if key.problem is not None:
            yield wrong(_NAME, f"{path}: key {key.id}: {key.problem}", "without it, its segments cannot be read")


def _check_active(ring: KeyRing, kms: KmsClients, *, is_wanted: bool) -> Iterator[Check]:
    if ring.active is None and not is_wanted:
        yield ok(_NAME, f"{ring.source}: {len(ring.keys)} keys; rsm.config.encryption.key.pair.id is not set")
        return
    data_key = new_data_key()
    try:
        wrapped = ring.wrap(data_key, _PROBE, kms)
        if ring.active_key().is_public:
            message = f"{ring.source}: key {ring.active} has only its public half: this machine can write, but not read"
            yield note(_NAME, message)
        elif ring.unwrap(wrapped, _PROBE, kms) != data_key:
            yield wrong(_NAME, f"{ring.source}: key {ring.active} unwraps another key than it wrapped", "do not use it")
        else:
            yield ok(_NAME, f"{ring.source}: {len(ring.keys)} keys; key {ring.active} wraps and unwraps")
    except RemoteStorageError as error:
        yield wrong(_NAME, str(error))
