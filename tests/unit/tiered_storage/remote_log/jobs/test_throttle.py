from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.remote_log.jobs.throttle import ByteQuota, Quota, QuotaLimit, RateLimit, copy_quota, fetch_quota
from tiered_storage.settings.settings import Settings, load_settings


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
def test_a_rate_limit_takes_the_time_of_its_rate(rate: int, sizes: list[int]) -> None:
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


def test_an_unlimited_quota_never_waits() -> None:
    time = FakeTime()
    for _ in range(10):
        RateLimit(-1, time, time.sleep).spend(1 << 40)

    assert time.seconds == 100.0


@pytest.mark.parametrize(("kind", "quota_of"), [("copy", copy_quota), ("fetch", fetch_quota)])
def test_a_quota_lasts_as_many_samples_as_its_settings_say(
    tmp_path: Path, kind: str, quota_of: Callable[[Settings], Quota]
) -> None:
    file, prefix = tmp_path / "settings.yaml", f"remote.log.manager.{kind}"
    file.write_text(
        f"{prefix}.max.bytes.per.second: 500\n{prefix}.quota.window.num: 3\n{prefix}.quota.window.size.seconds: 2\n"
    )
    assert quota_of(load_settings(file, environ={})) == Quota(500, window_seconds=6)


@given(
    st.integers(100, 1 << 20),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(1, 1 << 18), st.floats(0, 30)), max_size=30),
)
def test_no_window_exceeds_the_quota_and_nothing_waits_while_there_is_room(
    rate: int, window: int, pieces: list[tuple[int, float]]
) -> None:
    time, most = FakeTime(), rate * window
    quota = ByteQuota(Quota(rate, window), time)
    passed: list[tuple[float, int]] = []
    for size, pause in pieces:
        time.seconds += pause
        waited = quota.spend(min(size, most))
        time.seconds += waited
        passed.append((time.seconds, min(size, most)))
        within = sum(each for at, each in passed if at > time.seconds - window + 1e-6)
        assert within <= most + 2 * max(each for _, each in passed)
        before = sum(each for at, each in passed if at > time.seconds - waited - window - 1e-6)
        assert not waited or before > most * (1 - 1e-9)


@given(st.integers(1000, 1 << 20), st.integers(1, 20), st.integers(1, 200))
def test_a_client_that_always_waits_gets_the_whole_quota(rate: int, window: int, count: int) -> None:
    time = FakeTime()
    limit = QuotaLimit(Quota(rate, window), time, time.sleep)
    for _ in range(count):
        limit.spend(rate // 2)

    expected = max(0.0, count * (rate // 2) / rate - window)
    assert expected - window <= time.seconds - 100 <= expected + window


def test_a_quota_lets_the_bytes_of_its_window_pass_at_once_and_again_when_they_have_left_it() -> None:
    time = FakeTime()
    quota = ByteQuota(Quota(1000, 10), time)

    assert quota.spend(9_999) == 0
    assert quota.seconds_left() == 0
    assert quota.spend(1) == 0
    assert quota.seconds_left() == 10
    time.seconds += 4
    assert quota.seconds_left() == 6
    assert quota.spend(20_000) == 16
    time.seconds += 3600
    assert quota.spend(10_000) == 0


def test_without_a_quota_everything_passes() -> None:
    assert ByteQuota().spend(1 << 60) == 0
    assert ByteQuota().seconds_left() == 0


def test_those_who_share_a_quota_use_all_of_it_and_no_more() -> None:
    quota = Quota(1000, 11)

    shares = [quota.share(part, 10) for part in (1, 2, 7)]

    assert [each.bytes_per_second for each in shares] == [100, 200, 700]
    assert quota.share(10, 10) == quota
    assert Quota().share(1, 10).is_unlimited


def test_threads_share_one_limit() -> None:
    time = FakeTime()
    limit = QuotaLimit(Quota(1000, 1), time, time.sleep)
    for _ in range(10):
        limit.spend(1000)

    assert time.seconds == 109.0


def test_half_a_window_passes_at_once_and_the_rest_evenly() -> None:
    time, waits = FakeTime(), list[float]()
    limit = QuotaLimit(Quota(1000, 10), time, time.sleep)
    for _ in range(1000):
        before = time.seconds
        limit.spend(100)
        waits.append(round(time.seconds - before, 6))

    assert waits[:50] == [0.0] * 50
    assert waits[50:100] == [0.1] * 50
    assert set(waits[101:]) == {0.1}
    assert time.seconds - 100 < 101
