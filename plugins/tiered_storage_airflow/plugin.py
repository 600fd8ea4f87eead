"""The Airflow plugin: an application for the API server, a link from tasks to reports, and a menu entry.

Airflow finds it by the entry point `airflow.plugins` of the installed package, or else in its plugins folder, by
plugins/tiered_storage_plugin.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from tiered_storage_airflow.forms import fields  # noqa: F401 - the API server checks forms, and loads no DAG file
from tiered_storage_airflow.links import REPORTS, ReportLink, page_url


class TieredStoragePlugin(AirflowPlugin):
    """Registers the application, the menu entry and the link."""

    name = "tiered_storage"
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

    @property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """The application, built when the API server asks for it: every task of the installation loads the plugin."""
        return _applications()


@cache
def _applications() -> list[Any]:
    from tiered_storage_airflow.web_app import read_service  # noqa: PLC0415 - half a thousand modules of the API server

    return [{"app": read_service(), "url_prefix": REPORTS, "name": "Remote Log"}]
