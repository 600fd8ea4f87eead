"""Kafka's own bytes on disk: record batches, indexes, checkpoints, segments and logs."""
