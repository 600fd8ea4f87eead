"""Hooks: where Airflow's connections meet the library.

`remote_storage` turns a connection into the store's options, and `remote_log` opens a remote log with them. Each opens
what it opens inside a task's execute, never when a DAG file is parsed.
"""

__all__ = ["remote_log", "remote_storage"]
