"""The switch of all deletions where the disk with metadata and work area has not a byte left."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from support.small_disks import fill, small_disk
from support.tiered_site import TIERED, TieredSite
from tiered_storage_airflow.operators.deletion import StopDeletionsOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

ROOMY = 48 << 20


@pytest.fixture
def full_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TieredSite]:
    site = TieredSite(tmp_path)
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(site.config))
    rights = tmp_path / "rights.yaml"
    rights.write_text("admins: [ada]")
    with small_disk(site.state, ROOMY):
        site.write_logs({"orders-0": 2})
        site.configure({"orders": TIERED}, **{"read.service.rights.file": str(rights)})
        site.copy()
        switch(site, lift=False)
        switch(site, lift=True)
        fill(site.state)
        yield site


def switch(site: TieredSite, *, lift: bool) -> None:
    run = SimpleNamespace(
        dag_id="stop_deletions",
        run_id="run",
        run_type="manual",
        triggering_user_name="ada",
        run_after=datetime.now(UTC),
    )
    task = SimpleNamespace(try_number=1, task_id="switch", xcom_push=lambda **_: None)
    context: Any = {"dag_run": run, "ti": task, "params": {}}
    StopDeletionsOperator(task_id="switch", lift=lift, reason="doubt \ud800").execute(cast("Context", context))
    with site.open() as remote_log:
        assert (remote_log.context.safety.stopped() is None) is lift


def test_deletions_are_stopped_and_continue_though_no_report_can_be_written(full_site: TieredSite) -> None:
    switch(full_site, lift=False)
    switch(full_site, lift=True)
