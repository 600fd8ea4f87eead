"""Remote log metadata as released Kafka keeps it in its topic `__remote_log_metadata`.

`records` reads and writes the values of its records, byte for byte as Kafka does; `metadata_columns` reads many at
once. `partitioner` finds the metadata partition of a partition.
"""

__all__ = ["metadata_columns", "partitioner", "records"]
