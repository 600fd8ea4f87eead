"""`topics advise` over log directories: from their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import run_on
from support.remote_logs import ENABLED, a_remote_log
from tiered_storage.remote_log.enabling.advice import DAY, MONTH

PRICES = {
    "cost.store.gb.month": 2,
    "cost.store.write.thousand": 3,
    "cost.store.read.thousand": 7,
    "cost.transfer.gb": 11,
    "cost.disk.gb.month": 5,
}


def test_files_say_what_would_be_copied_and_what_it_costs(tmp_path: Path) -> None:
    limits = {**ENABLED, "retention.ms": 40_000, "local.retention.ms": 10_000}
    files = a_remote_log(tmp_path, {("orders", 0): 5, ("clicks", 0): 0}, topics={"orders": limits, "clicks": {}})
    files.properties |= PRICES

    document = run_on(files, "topics", "advise", "--json").document

    clicks, orders = document["rows"]
    sizes = sorted(path.stat().st_size for path in files.partition_directory().glob("*.log"))
    closed = sum(sizes) - sizes[0]
    # Record n is of second n, ten of them in each of the closed segments.
    a_second = closed / 50
    assert (orders["local_bytes"], orders["due_bytes"]) == (sum(sizes), closed)
    assert orders["daily_bytes"] == pytest.approx(a_second * DAY / 1000, rel=0.01)
    assert orders["stored_bytes"] == pytest.approx(a_second * 40, rel=0.01)
    assert orders["kept_locally_bytes"] == pytest.approx(a_second * 10 + sizes[-1], rel=0.01)
    assert orders["saved_bytes"] == orders["stored_bytes"] - orders["kept_locally_bytes"]
    assert orders["store_a_month"] == pytest.approx(orders["stored_bytes"] / 10**9 * 2)
    assert orders["writes_a_month"] == pytest.approx(a_second * MONTH / 1000 / sizes[-1] * 3 / 1000 * 3, rel=0.01)
    assert orders["reads_a_month"] == pytest.approx(a_second * MONTH / 1000 / sizes[-1] / 1000 * 7, rel=0.01)
    assert orders["transfer_a_month"] == pytest.approx(2 * a_second * MONTH / 1000 / 10**9 * 11, rel=0.01)
    assert orders["disks_saved_a_month"] == pytest.approx(orders["saved_bytes"] / 10**9 * 5)
    assert (clicks["due_bytes"], clicks["stored_bytes"], clicks["problem"]) == (0, 0, None)
    assert document["sum"]["partitions"] == 2
    assert document["sum"]["due_bytes"] == closed
    assert (document["not_counted"], document["estimated"]) == ([], None)


def test_the_advice_names_missing_prices_and_counts_nothing_for_them(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 2})

    shown = run_on(files, "topics", "advise", "orders")

    assert shown.exit_code == 0, shown.err
    assert "a month" not in shown.out
    assert ", ".join(PRICES) in shown.err
    assert run_on(files, "topics", "advise", "nothing").exit_code == 1


def test_a_topic_that_cannot_be_tiered_is_named_and_not_counted(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 2}, topics={"orders": {"cleanup.policy": "compact"}})

    document = run_on(files, "topics", "advise", "--json").document

    assert "cleanup.policy=compact" in document["rows"][0]["problem"]
    assert document["sum"]["partitions"] == 0


@pytest.mark.parametrize("price", [-1, "dear", True, "nan", "inf"])
def test_an_invalid_price_is_refused_by_its_name(tmp_path: Path, price: object) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 1})
    files.properties["cost.disk.gb.month"] = price

    refused = run_on(files, "topics", "advise")

    assert refused.exit_code == 1
    assert "cost.disk.gb.month" in refused.err
