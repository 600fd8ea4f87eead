"""The files of a log directory: segment names, checkpoints, meta.properties, partition.metadata, `.lock`.

Each module reads and writes one of them. `log_directory` reads a whole directory and never changes one;
`log_segment` also has what a log reports of a file that it repaired.
"""

__all__ = [
    "checkpoint_file",
    "directory_lock",
    "kafka_uuid",
    "leader_epoch_checkpoint",
    "log_directory",
    "log_segment",
    "meta_properties",
    "offset_checkpoint",
    "partition_metadata",
    "small_files",
    "topic_partition",
]
