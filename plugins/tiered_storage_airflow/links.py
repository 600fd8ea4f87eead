"""The link from a task to its run's report, and the paths of our pages."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

REPORTS = "/remote-log"
"""The path of the reports on the API server, where plugin.py mounts them."""


PAGE = f"{REPORTS}/page/"
"""The path of the pages that show where data are."""

READ_SERVICE = f"{REPORTS}/v1"
"""The path of the read service."""


class ReportLink(BaseOperatorLink):
    """Links to the page with the run's summaries and the files that its tasks wrote on the operator's cluster."""

    name = "Report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the page's address, on the API server that shows the task."""
        return report_url(ti_key.dag_id, ti_key.run_id, getattr(operator, "cluster", None))


def report_url(dag_id: str, run_id: str, cluster: str | None = None) -> str:
    """Return the address of a run's report, without a host, below the path of Airflow's `api.base_url`."""
    return (
        f"{_base_path()}{REPORTS}{below_reports(cluster)}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"
    )


def page_url() -> str:
    """Return the address of the page of all topics, in the same form."""
    return _base_path() + PAGE


def below_reports(cluster: str | None) -> str:
    """Return the path, below REPORTS, of what belongs to a cluster; of the first one, nothing."""
    return "" if cluster is None else f"/clusters/{cluster}"


def _base_path() -> str:
    from airflow.sdk.configuration import conf  # noqa: PLC0415 - read when a link is asked for

    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
