"""Metrics of a remote log: how far copying lags, what is stuck or failed, and whether the tiers' offsets fit together.

`snapshot` takes them, with what `samples` keeps of earlier ones; `stored` keeps a day of them in the work area.
`exposition` has Kafka's names for them and Prometheus' format, and counts a process's fetches; `exporter` serves them.
"""

__all__ = ["exporter", "exposition", "partition_metrics", "snapshot", "stored"]
