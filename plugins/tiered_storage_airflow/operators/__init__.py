"""Operators for the remote log, by the border that they work on: usable in anybody's DAG."""
