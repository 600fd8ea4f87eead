"""What the store holds of one partition, and whether the metadata can be of this day.

COPY_SEGMENT_STARTED is written before any object, and the id of a deleted segment stays known. So in a sound pair the
metadata know every segment id in the store; a backup of last week does not know what was copied since.
"""

from __future__ import annotations

from tiered_storage.errors import OutdatedMetadataError
from tiered_storage.remote_log.metadata import RemoteLogMetadataManager
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.storage import RemoteStorageManager
from tiered_storage.remote_log.storage.object_names import partition_folder
from tiered_storage.remote_log.storage.segment_objects import ListedObject, ObjectRemoteStorageManager


def list_stored(
    partition: TopicIdPartition, storage: RemoteStorageManager, metadata: RemoteLogMetadataManager
) -> list[ListedObject] | None:
    """Return all objects in the partition's folder; None where the store cannot list them.

    A user's own RemoteStorageManager lists nothing. Raises OutdatedMetadataError where an object's segment was never
    begun by these metadata.
    """
    if not isinstance(storage, ObjectRemoteStorageManager):
        return None
    # The listing first: whatever it shows had its metadata written before it.
    listed = list(storage.list_objects(partition_folder(partition)))
    ids = {found.segment.segment_id.id for found in listed if found.segment is not None}
    unknown = sorted(ids - metadata.known_segment_ids(partition, ids))
    if unknown:
        raise OutdatedMetadataError(
            f"{partition}: the store has objects of {len(unknown)} segments that the metadata never heard of, such as "
            f"{unknown[0]}: the metadata are older than the store; nothing of the partition is deleted before a newer "
            "backup of them is restored, or 'tiered-storage rebuild-metadata' made them anew"
        )
    return listed
