"""A copy that hangs in the store is ended (scenario 11): by the command line here, by the DAG in tests/dags."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from crashes.storages import HANGING_VICTIM, WHILE_THERE
from support.airflow_home import PROJECT
from support.remote_logs import assert_clean
from support.tiered_site import TIERED, TieredSite
from tiered_storage.remote_log.model import SegmentState

STUCK_AFTER_MS = 10_000
"""The minimum of copy.stuck.after.ms."""


def test_a_copy_in_which_no_byte_moves_is_ended_what_is_finished_is_committed_and_the_next_one_takes_the_rest(
    tmp_path: Path,
) -> None:
    site = TieredSite(tmp_path)
    site.write_logs({"orders-0": 3, "payments-0": 2})
    site.configure(
        {"orders": TIERED, "payments": TIERED},
        copy_stuck_after_ms=STUCK_AFTER_MS,
        remote_log_storage_manager_class_name="crashes.storages.HangingStorage",
    )
    marker = tmp_path / "hangs"
    marker.touch()
    environment = {
        **os.environ,
        "PYTHONPATH": str(PROJECT / "tests"),
        HANGING_VICTIM: "orders-0@10",
        WHILE_THERE: str(marker),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tiered_storage.cli.main", "copy", "--json", "--config", str(site.config)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert [(row["partition"], row["start_offset"]) for row in document["rows"]] == [
        ("orders-0", 0),
        ("payments-0", 0),
        ("payments-0", 10),
    ]
    [trouble] = document["troubles"]
    assert trouble["partition"] == "orders-0"
    assert all(
        word in trouble["message"] for word in ("CopyStuckError", "10 s (copy.stuck.after.ms)", "3 of 5 segments")
    )
    assert "error: orders-0: CopyStuckError" in done.stderr
    assert "Traceback" not in done.stderr
    assert (site.finished("orders-0"), site.finished("payments-0")) == ([0], [0, 10])
    given_up = site.segments("orders-0", SegmentState.DELETE_SEGMENT_STARTED)
    assert [segment.start_offset for segment in given_up] == [10, 20]

    # Its leases were released, so any run can copy the rest at once.
    site.configure({"orders": TIERED, "payments": TIERED})
    site.copy()
    assert site.finished("orders-0") == [0, 10, 20]
    with site.open() as remote_log:
        assert_clean(remote_log, expected=None)
