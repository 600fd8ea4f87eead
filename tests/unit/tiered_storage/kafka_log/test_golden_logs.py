"""The committed golden logs, which a real broker wrote, against all that reads, rebuilds and shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from golden import checks
from golden.logs import GoldenLogs

GOLDEN = GoldenLogs(Path(__file__).parents[3] / "golden")


@pytest.mark.parametrize("check", checks.CHECKS)
def test_golden_logs_of_real_brokers_pass_every_check(check: Callable[[GoldenLogs], None]) -> None:
    check(GOLDEN)


@pytest.mark.parametrize("check", checks.CHECKS_OF_COPIES)
def test_copies_of_golden_logs_pass_every_check_that_writes(
    check: Callable[[GoldenLogs, Path], None], tmp_path: Path
) -> None:
    check(GOLDEN, tmp_path)
