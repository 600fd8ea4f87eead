"""Compare the metadata with their object store, and raise OutdatedMetadataError where they are of different times.

generation    of the decisions and of every run that copies or deletes      see generation.py
decision      its number, as an earlier release recorded it in the store
lease         the newest one that wrote a partition's document              see manifest_sync.py
document      of a partition: its log start, its deletion and its marks     see manifest_sync.py
"""

from __future__ import annotations

from collections.abc import Callable

from tiered_storage.errors import OutdatedMetadataError
from tiered_storage.remote_log.metadata.metadata_store import Generation, MetadataGeneration
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Leases, RemoteLogMetadataManager
from tiered_storage.remote_log.model import Lease
from tiered_storage.remote_log.storage.documents.partition_manifest import MAX_MARKED, PartitionManifest
from tiered_storage.remote_log.storage.documents.store_generation import StoredGeneration, StoreGenerations

COMPARISONS = 5
"""How often store and metadata are compared again: another process may renew both between two reads."""

_NOTHING = "nothing is copied, trimmed or deleted"
_PERSONS_WORD = "to use these metadata all the same, run 'tiered-storage metadata take-over'"
_WHAT_TO_DO = (
    "use the live metadata, put a newer backup back with 'tiered-storage metadata restore', or rebuild them with "
    f"'tiered-storage rebuild-metadata'; {_PERSONS_WORD}"
)


def compared_generations(
    generations: StoreGenerations,
    metadata: MetadataGeneration,
    is_refused: Callable[[Generation, StoredGeneration | None], bool] = lambda _, __: True,
) -> tuple[Generation, StoredGeneration | None]:
    """Return the generation of the metadata and that of the store.

    Raises OutdatedMetadataError if they differ by more than a pending token, if `is_refused` says so.
    """
    why = ""
    for _ in range(COMPARISONS):
        # Read the store first: the metadata are never renewed after it.
        stored = generations.newest()
        known = metadata.read()
        why = why_outdated(metadata.where, generations.place, known, stored) or ""
        if not why or not is_refused(known, stored):
            return known, stored
    raise OutdatedMetadataError(why)


def is_carried(known: Generation, stored: StoredGeneration | None) -> bool:
    """Return whether a store at `stored` carries the metadata's generation, or already their next one."""
    if stored is None:
        return known.number == 0
    return (stored.number, stored.token) in {(known.number, known.token), (known.number + 1, known.next_token)}


def is_older(known: Generation, stored: StoredGeneration | None) -> bool:
    """Return whether metadata at `known` are older than a store at `stored`, wholly or in part."""
    if not known.has_own_decisions:
        return True
    return stored is not None and stored.number >= known.number and not is_carried(known, stored)


def why_outdated(where: str, place: str, known: Generation, stored: StoredGeneration | None) -> str | None:
    """Return why the metadata at `where`, at `known`, do not match the store at `stored`; None if they do.

    A next token that the store carries already counts as known. `place` is where the store keeps generations.
    """
    if not known.has_own_decisions:
        return (
            f"{where}: the decisions about topics and deletions are not those of generation {known.number}: parts of "
            f"the file are older than others (was it restored while a '-wal' file lay beside it?), so {_NOTHING}; "
            f"{_WHAT_TO_DO}"
        )
    if not is_carried(known, stored):
        of_store = "no generation" if stored is None else f"generation {stored.number} ({stored.reason})"
        which = "they are older than the store, a backup, or a copy that has been superseded"
        if stored is None or stored.number < known.number:
            which = "the store is older than they are, or lost its generation"
        return (
            f"{place}: the store carries {of_store}, and the metadata {where} carry generation {known.number}: "
            f"{which}, so {_NOTHING}; {_WHAT_TO_DO}"
        )
    if not known.is_own_place:
        return (
            f"{where}: this file is a copy of the metadata, or was moved or restored: generation {known.number} was "
            f"recorded in another file, so {_NOTHING}. A copy needs a store of its own (rsm.config.url); "
            f"{_PERSONS_WORD}"
        )
    return None


def ensure_newest_decision(where: str, newest: int, known: int) -> None:
    """Raise OutdatedMetadataError if the metadata at `where` know decisions up to `known` only, the store `newest`."""
    if newest > known:
        raise OutdatedMetadataError(
            f"{where}: an earlier release recorded decision {newest} in the store, and these metadata have only "
            f"{known}: they are older than the store, so {_NOTHING}; {_WHAT_TO_DO}"
        )


def ensure_granted(number: int, lease: Lease, leases: Leases) -> None:
    """Raise LeaseLostError if the lease `number`, which wrote to the store, is later than `lease`.

    Raises OutdatedMetadataError if `leases` never granted it.
    """
    if number > lease.fencing_number:
        leases.check(lease)
        raise OutdatedMetadataError(
            f"{lease.topic_id_partition}: lease {number} has written to the store, but the metadata granted none after "
            f"{lease.fencing_number}: they are older than the store; run 'tiered-storage rebuild-metadata'"
        )


def ensure_documented(manifest: PartitionManifest, metadata: RemoteLogMetadataManager) -> None:
    """Raise OutdatedMetadataError if the metadata have deleted more of the partition than its document records.

    The document is written first. Metadata that are ahead of it come from another time: an undelete, or a mixture of
    two database files, took back what they still have as deleted.
    """
    partition, stored = manifest.topic_id_partition, manifest.state
    state = metadata.partition_state(partition)
    what = None
    if (state.log_start_offset or 0) > (stored.log_start_offset or 0):
        what = (
            f"the global log start is {state.log_start_offset}, but {stored.log_start_offset} in the store's document"
        )
    elif state.delete_state is not None and (stored.delete_state is None or stored.delete_state < state.delete_state):
        what = f"its deletion is {state.delete_state.name}, which the store's document does not record"
    elif not stored.is_wholly_deleted and len(manifest.marked) < MAX_MARKED:
        named, start = set(manifest.marked), stored.log_start_offset or 0
        marked = (one for one in metadata.list_remote_log_segments(partition) if one.is_marked)
        unnamed = next((one for one in marked if one.end_offset >= start and one.segment_id.id not in named), None)
        if unnamed is not None:
            what = f"segment {unnamed.segment_id.id} is marked, which the store's document does not record"
    if what is not None:
        raise OutdatedMetadataError(
            f"{partition}: {what}: metadata and store are of different times, so nothing of it is deleted; run "
            "'tiered-storage audit', then 'tiered-storage undelete' or 'tiered-storage repair'"
        )
