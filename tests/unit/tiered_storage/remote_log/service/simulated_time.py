"""Time that tests of a service set, and its partitions."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from support.remote_logs import partition_of
from tiered_storage.remote_log.service.schedule import Pace, PartitionSchedule

PACE = Pace(interval=30.0, retry=0.5, most_retry=30.0, jitter=0.2)
PARTITIONS = [partition_of("orders", number) for number in range(4)]


@dataclass
class Time:
    """Seconds that pass on command."""

    seconds: float = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def move_by(self, seconds: float) -> None:
        self.seconds += seconds


def a_schedule(time: Time, pace: Pace = PACE) -> PartitionSchedule:
    return PartitionSchedule(pace, now=time, random=Random(7))  # noqa: S311 - nothing secret
