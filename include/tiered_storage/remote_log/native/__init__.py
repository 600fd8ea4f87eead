"""Clusters that tier by themselves: read what Kafka's own tiering stored, without a copy and without writing.

`metadata_store` reads the segments out of the topic __remote_log_metadata, and the storage managers read their objects:
`local_tiered_storage` in the layout of Kafka's LocalTieredStorage, `aiven` in that of Aiven's plugin. The remote index
trio that readers need is derived from Kafka's indexes, or from the batches.
"""

__all__ = ["aiven", "local_tiered_storage", "metadata_store", "read_only_storage", "segment_files"]
