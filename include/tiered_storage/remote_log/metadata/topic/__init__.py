"""Remote log metadata in a topic, as released Kafka keeps it in its topic `__remote_log_metadata`.

`records` reads and writes the values of its records, byte for byte as Kafka does; `metadata_columns` reads many at
once, and `partitioner` finds the metadata partition of a partition. `store` is the metadata store over it, whose
segments come from the topic by way of `cache`, and `moving` moves segments between SQL and the topic.
"""

__all__ = ["cache", "metadata_columns", "moving", "partitioner", "records", "store"]
