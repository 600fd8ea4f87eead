"""Remote log metadata as released Kafka keeps it in its topic `__remote_log_metadata`.

`records` reads and writes the values of its records, byte for byte as Kafka does. `partitioner` finds the metadata
partition of a partition.
"""

__all__ = ["partitioner", "records"]
