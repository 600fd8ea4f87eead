"""Registers with Airflow what is no DAG and no operator: the pages of tiered_storage_airflow.read_service."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from tiered_storage_airflow.links import REPORTS, ReportLink
from tiered_storage_airflow.read_service.app import read_service


class TieredStoragePlugin(AirflowPlugin):
    """The plugin of that name."""

    name = "tiered_storage"
    fastapi_apps: list[Any] = [{"app": read_service(), "url_prefix": REPORTS, "name": "Remote Log"}]  # noqa: RUF012
    operator_extra_links: list[Any] = [ReportLink()]  # noqa: RUF012
