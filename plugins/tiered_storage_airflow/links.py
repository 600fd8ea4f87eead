"""The link from a task to what its run did."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

REPORTS = "/remote-log"
"""Where the API server answers with reports; plugin.py mounts it there."""


PAGE = f"{REPORTS}/page/"
"""Where it shows what lies where."""

READ_SERVICE = f"{REPORTS}/v1"
"""Where it gives bytes and records."""


class ReportLink(BaseOperatorLink):
    """Leads to the page of the run's summary and of the files that its tasks left for one another."""

    name = "Report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's
        """Return the page's address, on the API server that shows the task."""
        return report_url(ti_key.dag_id, ti_key.run_id)


def report_url(dag_id: str, run_id: str) -> str:
    """Return the address of a run's report, without a host, below the path of Airflow's `api.base_url`."""
    return f"{_base_path()}{REPORTS}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"


def page_url() -> str:
    """Return the address of the page of all topics, as for reports."""
    return _base_path() + PAGE


def _base_path() -> str:
    from airflow.sdk.configuration import conf  # noqa: PLC0415 - read when a link is asked for

    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
