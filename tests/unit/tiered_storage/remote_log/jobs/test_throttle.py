from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.remote_log.jobs.throttle import RateLimit


class FakeTime:
    """A clock in seconds that only moves by sleeping, or by hand."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.seconds += seconds


@given(st.integers(1, 1 << 30), st.lists(st.integers(1, 1 << 22), max_size=20))
def test_what_passes_takes_as_long_as_the_rate_says(rate: int, sizes: list[int]) -> None:
    time = FakeTime()
    limit = RateLimit(rate, time, time.sleep)
    for size in sizes:
        limit.spend(size)

    assert abs(time.seconds - 100 - sum(sizes) / rate) < 1e-6


def test_a_pause_saves_nothing_up() -> None:
    time = FakeTime()
    limit = RateLimit(100, time, time.sleep)
    limit.spend(100)
    time.seconds += 60
    limit.spend(100)

    assert time.seconds == 162.0


def test_without_a_limit_nobody_waits() -> None:
    time = FakeTime()
    for _ in range(10):
        RateLimit(-1, time, time.sleep).spend(1 << 40)

    assert time.seconds == 100.0
