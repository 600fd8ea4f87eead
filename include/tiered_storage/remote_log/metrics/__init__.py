"""Metrics of a remote log: how far copying lags, what is stuck or failed, and whether the tiers' offsets fit together.

`snapshot` takes them, `stored` keeps them in the work area, with a day of history. `exposition` has Kafka's names for
them and Prometheus' format, and counts a process's fetches; `exporter` serves them.
"""

__all__ = ["exporter", "exposition", "partition_metrics", "snapshot", "stored"]
