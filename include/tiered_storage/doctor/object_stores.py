"""Check that a store works: create, keep, read, list and delete a probe object."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tiered_storage.clock import Clock
from tiered_storage.disk_space import disk_of, free_bytes
from tiered_storage.doctor.check import Check, note, ok, wrong
from tiered_storage.errors import RemoteObjectNotFoundError, TieredStorageError
from tiered_storage.remote_log.context import open_storage
from tiered_storage.remote_log.storage.clients.object_client import ObjectClient, delete_object
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.listable_storage import as_listable
from tiered_storage.settings.settings import Settings

SMALL_ROOM = 1 << 30
"""Bytes: the free space below which a disk for segments or metadata is reported."""
NO_ROOM_LEFT = 64 << 20
"""Bytes: the free space below which a disk counts as full; not even reserves fit there (disk_space.py)."""
CLOCK_NOTED_MS = 5_000
CLOCK_WRONG_MS = 300_000
"""A third of the clock difference that S3 servers allow."""

_CONTENT = b"written by tiered-storage doctor; safe to delete\n"
_OTHER_CONTENT = b"must not be written over what is there\n"


def check_storage(settings: Settings, options: ObjectStoreOptions, clock: Clock) -> Iterator[Check]:
    """Yield findings on the remote tier's store."""
    if settings.has_own_storage_manager:
        yield from _check_own_class(settings, options)
        return
    yield from check_objects("store", settings.rsm_config_url, options, clock)


def _check_own_class(settings: Settings, options: ObjectStoreOptions) -> Iterator[Check]:
    class_name = settings.remote_log_storage_manager_class_name
    with closing(open_storage(settings, options)) as storage:
        if as_listable(storage) is not None:
            yield note("store", f"{class_name} is your own class: it opens, and doctor cannot check its store")
            return
    yield note(
        "store",
        f"{class_name} is your own class: it opens, and doctor cannot check its store",
        "derive it from ListableStorage: without that, audits, rebuilds and repairs are not available, and metadata "
        "older than the store go unnoticed",
    )


def check_folder(name: str, folder: Path) -> Iterator[Check]:
    """Yield whether a folder exists or can be created, and has room."""
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    if not nearest.is_dir():
        yield wrong(name, f"{nearest} is not a folder", "set another one")
    elif not os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
        yield wrong(name, f"{nearest}: user {os.geteuid()} may not write there", "give that user the right to")
    elif nearest != folder:
        yield note(name, f"{folder} does not exist yet: it is created when it is needed")
    else:
        yield ok(name, f"{folder} can be written to")
    yield from check_room(name, nearest)


def check_room(name: str, folder: Path) -> Iterator[Check]:
    """Yield whether the disk of a folder is full, or nearly full."""
    free = free_bytes(folder)
    if free < NO_ROOM_LEFT:
        message = f"{folder}: {disk_of(folder)}, so it is almost full"
        yield wrong(name, message, "free some space there now: tiered-storage retain and expire still work")
    elif free < SMALL_ROOM:
        yield note(name, f"{folder}: {free:,} bytes are free", "free some space before copies and metadata fail")


def check_objects(
    name: str,
    url: str,
    options: ObjectStoreOptions,
    clock: Clock,
    random_hex: Callable[[], str] = lambda: secrets.token_hex(8),
) -> Iterator[Check]:
    """Yield findings on the store at `url`; leave nothing behind there."""
    with closing(open_object_client(url, options)) as client:
        folder = _folder_of(url)
        if folder is not None:
            yield from check_folder(name, folder)
        else:
            yield from _check_bucket(name, url, options)
        if folder is None or folder.is_dir():
            # A list, not a generator: a caller that stops reading must not leave an object behind.
            yield from list(_probe(name, client, f"doctor-{random_hex()}", folder, clock))


def _check_bucket(name: str, url: str, options: ObjectStoreOptions) -> Iterator[Check]:
    """Yield the identity that signs requests, if AWS reports it; warn of missing conditional writes."""
    scheme = urlsplit(url).scheme
    if scheme != "s3":
        return
    if not options.conditional_writes:
        yield note(
            name,
            f"{url}: is used without conditional writes (rsm.config.conditional.writes)",
            "let only one installation use this store",
        )
    # Another store's endpoint seldom has AWS's service that knows identities.
    if options.endpoint is None or options.sts_endpoint is not None:
        from tiered_storage.remote_log.storage.clients.aws_credentials import AwsIdentity  # noqa: PLC0415 -- imports AWS's library

        try:
            yield ok(name, f"{url}: requests are signed by {AwsIdentity(options).described()}")
        except TieredStorageError as error:
            yield note(name, f"{url}: AWS does not say who signs requests: {error}")


def _folder_of(url: str) -> Path | None:
    parsed = urlsplit(url)
    return Path(unquote(parsed.path)) if parsed.scheme == "file" else None


def _probe(name: str, client: ObjectClient, prefix: str, folder: Path | None, clock: Clock) -> Iterator[Check]:
    probe = f"{prefix}/probe"
    is_made = False
    try:
        begun = clock()
        is_made = client.create(probe, _CONTENT)
        ended = clock()
        yield from _check_kept(name, client, probe)
        yield from _check_listed(name, client, prefix, begun, ended)
    except TieredStorageError as error:
        yield wrong(name, str(error))
    try:
        delete_object(client, probe)
        yield from _check_gone(name, client, probe)
        if folder is None:
            delete_object(client, prefix)  # HDFS has folders, and deletes an empty one
    except TieredStorageError as error:
        # An object that was not created most likely does not exist; the reason is already reported.
        if is_made:
            yield wrong(name, str(error), f"remove {client.root}/{probe} by hand; expiry needs the right to delete")
    if folder is not None:
        with suppress(OSError):
            (folder / prefix).rmdir()


def _check_kept(name: str, client: ObjectClient, probe: str) -> Iterator[Check]:
    if client.create(probe, _OTHER_CONTENT):
        yield wrong(
            name,
            f"{client.root}: overwrites an object despite a conditional write (If-None-Match: *)",
            "use a store that supports conditional writes, or a newer version of this one, or set "
            "rsm.config.conditional.writes: false and let only one installation use this store",
        )
    elif client.get_range(probe, 0, client.size(probe)) != _CONTENT:
        yield wrong(name, f"{client.root}: returns other bytes than were sent", "do not use this store")
    else:
        yield ok(name, f"{client.root}: an object was created, not overwritten, and read")


def _check_listed(name: str, client: ObjectClient, prefix: str, begun: int, ended: int) -> Iterator[Check]:
    listed = list(client.list(prefix))
    if len(listed) != 1:
        yield wrong(name, f"{client.root}: lists {len(listed)} objects where one was just written", "do not use it")
        return
    # A store may report whole seconds.
    changed = listed[0].last_modified
    apart = max(0, begun - changed - 1_000, changed - ended - 1_000)
    message = f"{client.root}: its clock and ours are {apart:,} ms apart"
    advice = "synchronise both with NTP: the age of an object decides when it may be deleted"
    if apart > CLOCK_WRONG_MS:
        yield wrong(name, message, advice)
    elif apart > CLOCK_NOTED_MS:
        yield note(name, message, advice)
    else:
        yield ok(name, f"{client.root}: an object was listed, and the store's clock agrees with ours")


def _check_gone(name: str, client: ObjectClient, probe: str) -> Iterator[Check]:
    try:
        client.size(probe)
    except RemoteObjectNotFoundError:
        yield ok(name, f"{client.root}: the object was removed")
        return
    yield wrong(name, f"{client.root}: still shows a deleted object", f"check whether {probe} disappears later")
