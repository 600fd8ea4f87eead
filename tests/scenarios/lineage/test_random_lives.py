"""Random histories of a partition: elections, truncations, copies that succeed or die, followers, and retention.

After every step readers get what the current leader has, each offset once, and nothing is gone that no retention let
go. After leftovers are deleted, the audit is clean (scenarios 8, 9, 10, 15, 17, 19, 20, 28, 33, 36).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from scenarios.lineage.lineage_lives import LineageLives
from scenarios.lineage.topic_lives import TopicLives
from servers.real_kafka import RealKafka

OVER_BOTH = pytest.mark.parametrize("lives", [LineageLives, TopicLives], ids=["database", "topic"])


def run(lives: Callable[[], LineageLives], examples: int, steps: int) -> None:
    machine: Any = lives
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@OVER_BOTH
def test_random_lives_of_a_partition(lives: type[LineageLives]) -> None:
    run(lives, 5, 40)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@OVER_BOTH
def test_many_long_lives_of_a_partition(lives: type[LineageLives]) -> None:
    run(lives, 150, 100)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_lives_with_metadata_in_a_real_topic(real_kafka: RealKafka) -> None:
    run(lambda: TopicLives(real_kafka.bootstrap_servers), 5, 40)
