from __future__ import annotations

from tiered_storage.remote_log.restore.progress import RestoreProgress


def test_it_says_now_and_then_how_far_it_is() -> None:
    now = 100.0
    said: list[str] = []
    progress = RestoreProgress(10_000_000, said.append, every_seconds=5, monotonic=lambda: now)
    progress(1_000_000)
    assert said == []
    now = 105.0
    progress(1_500_000)
    progress(1)
    assert said == ["restored so far: 2,500,000 of 10,000,000 bytes, 0.5 MB/s, 15 s left"]
    now = 110.0
    progress(20_000_000)
    assert said[1].endswith(", 2.3 MB/s, 0 s left")
