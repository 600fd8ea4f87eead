"""The Airflow plugin: an application for the API server, a link from tasks to reports, and a menu entry.

Airflow finds it by the entry point `airflow.plugins` of the installed package, or else in its plugins folder, by
plugins/tiered_storage_plugin.py.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from tiered_storage_airflow.forms import fields  # noqa: F401 - the API server checks forms, and loads no DAG file
from tiered_storage_airflow.links import REPORTS, ReportLink, page_url
from tiered_storage_airflow.web_app import read_service


class TieredStoragePlugin(AirflowPlugin):
    """Registers the application, the menu entry and the link."""

    name = "tiered_storage"
    fastapi_apps: list[Any] = [{"app": read_service(), "url_prefix": REPORTS, "name": "Remote Log"}]  # noqa: RUF012
    external_views: list[Any] = [  # noqa: RUF012
        {
            "name": "Remote Log",
            "href": page_url(),
            "destination": "nav",
            "category": "browse",
            "url_route": "remote_log",
        }
    ]
    operator_extra_links: list[Any] = [ReportLink()]  # noqa: RUF012
