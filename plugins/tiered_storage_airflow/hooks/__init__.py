"""Hooks: where Airflow's connections meet the library.

`remote_storage` turns a connection into the store's options (`connections`), `kafka_cluster` one into the properties of
a cluster's client, and `remote_log` opens a remote log with them. A hook opens nothing while a DAG file is parsed, only
in a task's execute.
"""

__all__ = ["kafka_cluster", "remote_log", "remote_storage"]
