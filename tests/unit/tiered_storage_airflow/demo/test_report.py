from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from support.tiered_site import RECORDS, TIERED, TieredSite
from tiered_storage_airflow.demo.comparison import Compared
from tiered_storage_airflow.demo.expectation import DemoError, ExpectedPartition
from tiered_storage_airflow.demo.report import Offsets, PartitionRow, ensure_all_was_shown, print_report, rows

ROW = PartitionRow("orders-0", 5, Offsets(5, 9), Offsets(10, 39), Offsets(20, 49), 3000, 3000, 9, 45, 40)


def nothing_expired(row: PartitionRow) -> PartitionRow:
    return replace(row, expired=None)


def nothing_trimmed(row: PartitionRow) -> PartitionRow:
    return replace(row, local=Offsets(5, 49))


def nothing_remote_only(row: PartitionRow) -> PartitionRow:
    return replace(row, remote=Offsets(20, 39))


def nothing_remote(row: PartitionRow) -> PartitionRow:
    return replace(row, remote=None)


def test_one_partition_that_shows_all_is_enough() -> None:
    ensure_all_was_shown([ROW, nothing_expired(ROW), nothing_trimmed(ROW), nothing_remote(ROW)])
    ensure_all_was_shown([replace(ROW, local=None)])


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (nothing_expired, "has expired"),
        (nothing_trimmed, "was trimmed"),
        (nothing_remote_only, "is remote only"),
        (nothing_remote, "is remote only"),
    ],
)
def test_the_demo_fails_if_no_partition_shows_a_step(harm: Callable[[PartitionRow], PartitionRow], words: str) -> None:
    row = harm(ROW)

    with pytest.raises(DemoError, match=words):
        ensure_all_was_shown([row, row])


def test_a_row_has_the_tiers_of_a_topic_and_its_size_in_the_store(tmp_path: Path) -> None:
    site = TieredSite(tmp_path)
    site.write_logs({"orders-0": 3, "orders-1": 2})
    site.configure({"orders": TIERED}, log_end_is_stable=True)
    site.copy()
    [marker, *_] = sorted((site.state / "remote").rglob("0/*.commit"))
    marker.unlink()
    expected = ExpectedPartition("orders", 0, 0, lambda: iter(()))

    with site.open() as remote_log:
        [row] = rows(remote_log, [expected], {"orders-0": Compared(5, 45)}, {"orders-0": Compared(RECORDS, 40)})
        [unchanged] = rows(remote_log, [expected], {"orders-0": Compared(5, 45)}, {"orders-0": Compared(5, 45)})

    assert (row.expired, row.remote, row.local) == (Offsets(5, 9), Offsets(0, 29), Offsets(0, 39))
    assert (row.objects, row.compared_before, row.compared_after) == (3 * 3 - 1 + 1, 45, 40), "one keeps the state"
    assert unchanged.expired is None


def test_the_table_begins_what_expired_where_the_log_began() -> None:
    console = Console(width=160)

    with console.capture() as captured:
        print_report([ROW, nothing_expired(ROW)], {"copy": 1.0, "audit": 2.5}, console)

    shown = captured.get()
    assert "orders-0" in shown
    assert "5 to 9" in shown
    assert "none" in shown
    assert "3.5" in shown
