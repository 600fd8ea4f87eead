"""The clock of the active controller: what brokers are asked, and what their answers mean."""

from __future__ import annotations

from itertools import cycle

import pytest

from support.command_line import mentions
from tiered_storage.clock import Clock, as_date
from tiered_storage.kafka_wire.connections.apis import APIS, DESCRIBE_QUORUM
from tiered_storage.kafka_wire.connections.client_settings import ClientSettings
from tiered_storage.kafka_wire.controller_clock import ControllerClock
from unit.tiered_storage.kafka_wire.scripted_cluster import UNREACHABLE, Scripted, client, served

NOON = 1_795_780_800_000
MINUTE = 60_000


@pytest.fixture
def clock() -> Clock:
    """A clock of this machine that shows another time before and after each answer."""
    times = cycle([NOON - 20, NOON + 80])
    return lambda: next(times)


@pytest.mark.parametrize("latest", range(DESCRIBE_QUORUM.oldest, DESCRIBE_QUORUM.latest + 1))
def test_the_active_controller_answers_with_its_own_time_in_every_version(latest: int, clock: Clock) -> None:
    ranges = {each.key: (0, each.latest) for each in APIS} | {DESCRIBE_QUORUM.key: (0, latest)}
    scripted = Scripted(clocks={7: NOON - 300, 9: NOON, 8: NOON - 100})
    with served(scripted, ranges) as cluster:
        assert cluster.controller_clock(clock) == ControllerClock(9, NOON, NOON - 20, NOON + 80)
    assert [asked.version for _, asked in scripted.asked] == [latest]


@pytest.mark.parametrize("clocks", [{}, {7: NOON}, {9: -1}], ids=["no replica", "a follower alone", "no time"])
def test_an_answer_without_the_controllers_time_shows_no_clock(clocks: dict[int, int], clock: Clock) -> None:
    with served(Scripted(clocks=clocks)) as cluster:
        assert cluster.controller_clock(clock) is None


@pytest.mark.parametrize("code", [3, 6, 31], ids=["no such log", "the controller has just changed", "no right"])
def test_after_an_error_no_clock_is_shown_and_nothing_is_asked_again(code: int, clock: Clock) -> None:
    scripted = Scripted(fails={(1, DESCRIBE_QUORUM.key, 0): [code]}, clocks={9: NOON})
    with served(scripted) as cluster:
        assert cluster.controller_clock(clock) is None
        assert scripted.keys() == [(1, DESCRIBE_QUORUM.key)]
        assert cluster.controller_clock(clock) is not None


@pytest.mark.parametrize("offered", [None, (0, 0)], ids=["by ZooKeeper", "before Kafka 3.3"])
def test_brokers_that_cannot_show_it_show_no_clock(offered: tuple[int, int] | None, clock: Clock) -> None:
    ranges = {each.key: (0, each.latest) for each in APIS if each is not DESCRIBE_QUORUM}
    if offered is not None:
        ranges[DESCRIBE_QUORUM.key] = offered
    scripted = Scripted(clocks={9: NOON})
    with served(scripted, ranges) as cluster:
        assert cluster.controller_clock(clock) is None
    assert scripted.asked == []


def test_brokers_that_do_not_answer_show_no_clock(clock: Clock) -> None:
    with client(ClientSettings((UNREACHABLE,), connect_seconds=1, request_seconds=1)) as cluster:
        assert cluster.controller_clock(clock, seconds=0.2) is None


@pytest.mark.parametrize(
    ("shown", "is_apart"),
    [(NOON - MINUTE, False), (NOON - MINUTE - 1, True), (NOON + MINUTE + 500, False), (NOON + MINUTE + 501, True)],
)
def test_the_time_that_the_answer_takes_counts_for_neither_clock(shown: int, is_apart: bool) -> None:
    why = ControllerClock(9, shown, NOON, NOON + 500).why_apart(MINUTE)

    assert (why is not None) == is_apart
    if why is not None:
        assert mentions(why, "node 9", as_date(shown), as_date(NOON + 500), f"clock.max.skew.ms ({MINUTE})")
