from __future__ import annotations

from tiered_storage.remote_log.progress import Amount, TaskProgress


def test_progress_is_reported_every_few_seconds_and_at_the_end() -> None:
    now = 100.0
    said: list[str] = []
    progress = TaskProgress("restored", Amount(3, 10_000_000), said.append, every_seconds=5, monotonic=lambda: now)
    progress(1_000_000)
    assert said == []
    now = 105.0
    progress(1_500_000, 1)
    progress(1)
    [first] = said
    assert_says(first, "restored so far", "1 of 3 segments", "2.5 of 10.0 MB", "0.5 MB/s", "15 s")
    now = 110.0
    progress(7_499_999, 2)
    assert_says(said[1], "restored so far", "3 of 3 segments", "10.0 of 10.0 MB", "1.0 MB/s", "0 s")
    progress(5_000_000, 1)
    progress.conclude()
    assert_says(said[2], "restored in total", "4 of 4 segments", "15.0 of 15.0 MB", "1.5 MB/s", "0 s")


def assert_says(line: str, what: str, *amounts: str) -> None:
    """Assert that `line` begins with `what`, and has these amounts and no others."""
    assert line.startswith(f"{what}: ")
    said = line.removeprefix(f"{what}: ").split(", ")
    assert len(said) == len(amounts)
    assert [amount for amount, part in zip(amounts, said, strict=True) if not part.startswith(amount)] == []


def test_nothing_is_reported_if_there_is_nothing_to_do() -> None:
    said: list[str] = []
    TaskProgress("deleted", Amount(), said.append, every_seconds=0).conclude()
    assert said == []
