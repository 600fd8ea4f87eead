"""The page of one run: its figures, and the files that its tasks left for one another."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from tiered_storage_airflow.run_summary import SUMMARY, RunSummary

if TYPE_CHECKING:
    from tiered_storage.remote_log.jobs.work_area import WorkArea

MOST_BYTES_SHOWN = 5_000_000
"""A file is shown so far; all of it is in the work area."""

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px system-ui, sans-serif; margin: 2rem; color: #1f2933 }} table {{ border-collapse: collapse }}
td, th {{ text-align: left; padding: .25rem 1.5rem .25rem 0; vertical-align: top }} h1 {{ font-size: 1.3rem }}
</style></head><body><h1>{dag_id}</h1><p>{run_id}</p>{figures}<h2>Files of the run</h2><ul>{files}</ul>
<p>In the work area: {folder}</p></body></html>
"""


def report_page(dag_id: str, run_id: str, work: WorkArea, folder: str, names: Sequence[str]) -> str:
    """Return the page as HTML; `names` are those of the files in `folder`."""
    paths = [f"{folder}/{name}" for name in names if name.rpartition("/")[2] == SUMMARY]
    told = (summary for path in paths for summary in work.read_report(path, RunSummary))
    summaries = sorted(told, key=lambda summary: (summary.written_at, summary.task_id))
    return _PAGE.format(
        title=escape(f"{dag_id}: {run_id}"),
        dag_id=escape(dag_id),
        run_id=escape(run_id),
        figures="".join(map(_figures, summaries)) or "<p>No task has told any figures yet.</p>",
        files="".join(f'<li><a href="?file={quote(name, safe="")}">{escape(name)}</a></li>' for name in names),
        folder=escape(f"{work.url}/{folder}"),
    )


def _figures(summary: RunSummary) -> str:
    rows = "".join(
        f"<tr><th>{escape(name.replace('_', ' '))}</th><td>{escape(_shown(value))}</td></tr>"
        for name, value in summary.figures.items()
    )
    return f"<table>{rows}</table><p>As {escape(summary.task_id)} told it{_moment(summary.written_at)}.</p>"


def _moment(time_ms: int) -> str:
    """Return " at" and the moment; nothing for a number that is no time."""
    try:
        return f" at {datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OSError, OverflowError, ValueError):
        return ""


def _shown(value: int | str | list[str]) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) else value
