"""What snapshots learn from records and brokers, kept in the work area, so that each goes on where the last ended.

metrics/samples.jsonl   one PartitionSamples a partition

One snapshot reads only so many records, and asks for only so many rates. It knows the others from earlier snapshots,
also of other processes. The first record that is not remote stays the same until the next copy; a rate is used for a
day.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from tiered_storage.errors import ConfigurationError, RemoteStorageError, TieredStorageError
from tiered_storage.remote_log.jobs.work_area import WorkArea
from tiered_storage.remote_log.model import TopicIdPartition

PATH = "metrics/samples.jsonl"
MOST_SAMPLES = 1000
"""How many records one snapshot reads to learn how old they are."""
MOST_RATES = 200
"""Of how many partitions with a retention.bytes one snapshot asks how fast they are written."""
MOST_KEPT = 50_000
"""Of how many partitions samples are kept, those that were read last: some 12 MB."""
RATE_MS = 86_400_000
"""For how long (ms) a rate is used."""

_log = logging.getLogger(__name__)

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Sample:
    """The time (ms) of the record at `offset`, and the bytes that an offset takes there. None, 0: not known."""

    offset: int
    timestamp: int | None
    bytes_an_offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Rate:
    """The bytes a ms at which a partition was written at `known_at`, and when it was asked for last (ms); -1: never."""

    asked_at: int = -1
    known_at: int = -1
    bytes_a_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class PartitionSamples:
    """What is kept of one partition."""

    partition: TopicIdPartition
    sample: Sample | None
    rate: Rate | None


@dataclass(slots=True)
class Samples:
    """The first record of each partition that is not remote, and its rate; those that were read last come last."""

    known: dict[TopicIdPartition, Sample] = field(default_factory=dict)
    rates: dict[TopicIdPartition, Rate] = field(default_factory=dict)
    left: int = 0
    """How many more records this snapshot may read."""
    rates_left: int = 0
    """How many more rates it may ask for."""
    is_changed: bool = False
    """Whether anything is known that is not kept yet."""

    def begin(self) -> None:
        """Begin a snapshot."""
        self.left, self.rates_left = MOST_SAMPLES, MOST_RATES

    def get(self, partition: TopicIdPartition, offset: int, read: Callable[[], Sample]) -> Sample | None:
        """Return what is known of the record at `offset`, or `read` it; None if that fails, or none may be read."""
        known = self.known.get(partition)
        if known is not None and known.offset == offset:
            return known
        if self.left > 0:
            self.left -= 1
            with suppress(TieredStorageError, OSError):
                found = read()
                self._put(self.known, partition, found)
                return found
        return None

    def rate(self, partition: TopicIdPartition, now: int) -> float | None:
        """Return the bytes a ms at which a partition is written, as last asked for; None: not known within a day."""
        known = self.rates.get(partition, Rate())
        return known.bytes_a_ms if 0 <= known.known_at <= now < known.known_at + RATE_MS else None

    def asked_at(self, partition: TopicIdPartition) -> int:
        """Return when the partition's rate was asked for last, also in vain; -1: never."""
        return self.rates.get(partition, Rate()).asked_at

    def ask_rate(self, partition: TopicIdPartition, now: int, ask: Callable[[], float]) -> None:
        """Learn a partition's rate if one more may be asked for. Raises what `ask` raises."""
        if self.rates_left <= 0:
            return
        self.rates_left -= 1
        # Also if this fails: a leader that is away must not take the turns of others.
        self._put(self.rates, partition, replace(self.rates.get(partition, Rate()), asked_at=now))
        self._put(self.rates, partition, Rate(now, now, ask()))

    def forget_others(self, partitions: Container[TopicIdPartition]) -> None:
        """Forget all partitions but these."""
        for known in (self.known, self.rates):
            for each in [each for each in known if each not in partitions]:
                del known[each]
                self.is_changed = True

    def _put(self, known: dict[TopicIdPartition, Value], partition: TopicIdPartition, value: Value) -> None:
        known.pop(partition, None)
        known[partition] = value
        self.is_changed = True


class SampleFile:
    """The samples of this process, and those in a work area.

    Trouble with the file is logged, and hinders no snapshot.
    """

    def __init__(self, work: WorkArea) -> None:
        self._work = work
        self._samples = Samples()
        self._is_read = False
        self._reported: str | None = None

    def read(self) -> Samples:
        """Return the samples of this process, with those that were kept before it; a corrupt file counts as empty."""
        if not self._is_read:
            with self._reporting("the samples of earlier metrics could not be read"):
                kept = self._kept()
                known = {each.partition: each.sample for each in kept if each.sample is not None}
                rates = {each.partition: each.rate for each in kept if each.rate is not None}
                self._samples.known = known | self._samples.known
                self._samples.rates = rates | self._samples.rates
                self._is_read = True
        return self._samples

    def keep(self) -> None:
        """Write the samples if anything changed; a file that could not be read stays as it is."""
        samples = self._samples
        if not self._is_read or not samples.is_changed:
            return
        last = list(islice(reversed(samples.known | samples.rates), MOST_KEPT))
        kept = [PartitionSamples(each, samples.known.get(each), samples.rates.get(each)) for each in reversed(last)]
        with self._reporting("the samples of these metrics could not be kept"):
            self._work.write(PATH, kept, PartitionSamples)
            samples.is_changed = False

    def _kept(self) -> list[PartitionSamples]:
        try:
            return self._work.read_if_there(PATH, PartitionSamples)
        except ConfigurationError as error:
            _log.warning("the samples of earlier metrics cannot be used; the next kept ones replace them: %s", error)
            self._samples.is_changed = True
            return []

    @contextmanager
    def _reporting(self, what: str) -> Iterator[None]:
        """Log a failure of the work area, once while it stays the same."""
        problem = None
        try:
            yield
        except (RemoteStorageError, OSError) as error:
            problem = f"{what}: {error}"
            if problem != self._reported:
                _log.warning("%s", problem)
        self._reported = problem
