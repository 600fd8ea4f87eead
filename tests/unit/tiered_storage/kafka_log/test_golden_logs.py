"""The committed golden logs, which a real broker wrote, against all that reads, rebuilds and shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support import golden_checks
from support.golden_logs import GoldenLogs

GOLDEN = GoldenLogs(Path(__file__).parents[3] / "golden")


@pytest.mark.parametrize(
    "check",
    [
        golden_checks.check_records,
        golden_checks.check_columns,
        golden_checks.check_codecs,
        golden_checks.check_append_times,
        golden_checks.check_transactions,
        golden_checks.check_leftovers_of_compaction,
        golden_checks.check_epochs,
        golden_checks.check_rebuild,
        golden_checks.check_dump_against_the_tool,
        golden_checks.check_dump_finds_all_sound,
    ],
)
def test_golden_logs(check: Callable[[GoldenLogs], None]) -> None:
    check(GOLDEN)


@pytest.mark.parametrize("check", [golden_checks.check_committed_reads, golden_checks.check_opening])
def test_copies_of_golden_logs(check: Callable[[GoldenLogs, Path], None], tmp_path: Path) -> None:
    check(GOLDEN, tmp_path)
