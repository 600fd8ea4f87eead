"""Programs for tests with several runs at once; see programs.py. Arguments: the settings file, then those of each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tiered_storage.clock import wall_clock
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.job import CopyJob
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.settings.settings import load_settings

BACKFILL = "support.two_at_once:backfill"


def backfill() -> None:
    """Copy, window by window, what a backfill does: arguments are its owner's name and the ends of the windows (ms)."""
    _, config, owner, *window_ends = sys.argv
    settings = load_settings(Path(config), environ={})
    rows: list[dict[str, object]] = []
    with RemoteLogManager.open(settings, wall_clock, store_options(settings, {}), create=True) as remote_log:
        for number, window_end in enumerate(map(int, window_ends)):
            begun = remote_log.begin_copy(remote_log.plan_copy(window_end=window_end), owner)
            job = remote_log.write_copy_job(f"runs/{owner}/{number}", begun)
            _, description = CopyJob.read(remote_log.work, f"runs/{owner}/{number}")
            with remote_log.keep_leases(task.lease for task in begun.tasks):
                for group in range(job.groups):
                    job.run_group(group, remote_log.storage, description.sizes, remote_log.clock)
            report = remote_log.commit_copy(job.outcomes())
            rows += [
                {"partition": str(segment.topic_id_partition), "start_offset": segment.start_offset}
                for segment in report.committed
            ]
    sys.stdout.write(json.dumps({"rows": rows}))
