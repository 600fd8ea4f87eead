"""Hooks: where Airflow's connections meet the library.

`connections` turns a connection into the store's options, or into the properties of a cluster's client;
`remote_storage`, `remote_log_metadata` and `remote_log` open a store, the metadata and a remote log with them. A hook
opens nothing while a DAG file is parsed, only in a task's execute.
"""

__all__ = ["connections", "remote_log", "remote_log_metadata", "remote_storage"]
