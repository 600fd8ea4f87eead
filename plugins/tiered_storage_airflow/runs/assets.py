"""The asset that a committed copy updates; `enforce_local_retention` runs on it."""

from __future__ import annotations

from airflow.sdk import Asset

REMOTE_LOG = Asset(name="remote_log", uri="x-remote-log://segments", group="tiered-storage")
