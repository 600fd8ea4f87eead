"""Exports of topics as tables, in this process."""

from __future__ import annotations

import re
from pathlib import Path

from support.remote_logs import NOW, RemoteLogFiles, unsynced
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.tables.export_job import ExportRequest, run_export_groups
from tiered_storage.remote_log.tables.exports import ExportReport
from tiered_storage.remote_log.tables.layout import Interval
from tiered_storage.remote_log.tables.query import TableQuery

EXPECTED = "30 records up to offset 29"
"""What each example prints that reads the files of the table."""


def export_orders(files: RemoteLogFiles) -> Path:
    """Export all of the topic orders, in two intervals; return where exports are."""
    with unsynced(), files.open() as remote_log:
        url = remote_log.context.settings.export_url
        for number, (begin, end) in enumerate([(NOW, NOW + 12_000), (NOW + 12_000, NOW + 60_000)]):
            request = ExportRequest(TableQuery("orders"), Interval(begin, end), url)
            assert not carry_out(remote_log, request, f"runs/export/{number}").failures
    return files.root / "state" / "exports"


def carry_out(remote_log: RemoteLogManager, request: ExportRequest, folder: str = "runs/export") -> ExportReport:
    """Do all of an export in this thread."""
    with remote_log.tables.export(request, folder) as begun:
        job = begun.write_job(folder)
        for group in range(job.groups):
            run_export_groups(remote_log.context.access(job.files), [group])
        return begun.commit(list(job.outcomes()))


def example(with_words: str) -> str:
    """Return the example of docs/reading.md or docs/tables.md that has these words."""
    texts = [(Path(__file__).parents[2] / "docs" / name).read_text() for name in ("reading.md", "tables.md")]
    scripts = [
        script for text in texts for script in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ]
    [script] = [script for script in scripts if with_words in script]
    return str(script)
