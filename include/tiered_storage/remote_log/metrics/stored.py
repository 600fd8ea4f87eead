"""The metrics that a run keeps in the work area, for those who cannot look themselves: the pages, and a scrape.

metrics/latest.jsonl          one RemoteLogMetrics: the last snapshot
metrics/hours/{00..23}.jsonl  one LagPoint a snapshot, of the last hour with that number (UTC)

The hours are a ring: each file is begun again a day later, so the history is a day long and nothing has to be deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.jobs.work_area import WorkArea
from tiered_storage.remote_log.metrics.partition_metrics import RemoteLogMetrics

LATEST = "metrics/latest.jsonl"
MOST_TOPICS = 200
"""How many topics a point of the history names: those that lag most. If it is full, the lag of others is unknown."""
MOST_POINTS_AN_HOUR = 60
_HOUR_MS = 3_600_000
_log = logging.getLogger(__name__)
_HOURS = 24


@dataclass(frozen=True, slots=True)
class TopicLag:
    """The lag of a topic: closed segments, their bytes, and the age (ms) of the first record; None: not known.

    Without segments and with an unknown age, nothing is known of the lag.
    """

    segments: int
    size: int
    ms: int | None


_NO_LAG, _UNKNOWN = TopicLag(0, 0, 0), TopicLag(0, 0, None)


@dataclass(frozen=True, slots=True)
class LagPoint:
    """The lag of the topics that had any, or whose lag was unknown, by name, at the moment `at` (ms)."""

    at: int
    topics: dict[str, TopicLag]

    @classmethod
    def of(cls, metrics: RemoteLogMetrics) -> LagPoint:
        """Keep what a history needs of `metrics`."""
        lags = {each.topic: each.lag for each in metrics.topics if each.lag is not None and each.lag.segments}
        most = sorted(lags, key=lambda topic: -lags[topic].size)
        unseen = metrics.problem is not None
        unknown = (
            each for each in metrics.topics if each.lag is None and (each.is_copied or each.unreadable or unseen)
        )
        found = {each: TopicLag(lags[each].segments, lags[each].size, lags[each].ms) for each in most}
        found |= {each.topic: _UNKNOWN for each in unknown}
        return cls(metrics.taken_at, dict(islice(found.items(), MOST_TOPICS)))

    def lag_of(self, topic: str) -> TopicLag | None:
        """Return the lag of a topic then; None: not known."""
        if topic in self.topics:
            return None if self.topics[topic] == _UNKNOWN else self.topics[topic]
        return None if len(self.topics) >= MOST_TOPICS else _NO_LAG


def keep_metrics(work: WorkArea, metrics: RemoteLogMetrics) -> None:
    """Write `metrics` as the latest, and add a point to the history. If two write at once, one point may be lost.

    An hour whose file is corrupt begins again.
    """
    work.write(LATEST, [metrics], RemoteLogMetrics)
    path, begin = _hour_of(metrics.taken_at)
    try:
        known = work.read_if_there(path, LagPoint)
    except ConfigurationError as error:
        _log.warning("an hour of the lag's history is lost, and begins again: %s", error)
        known = []
    earlier = [each for each in known if begin <= each.at < metrics.taken_at]
    work.write(path, [*earlier[1 - MOST_POINTS_AN_HOUR :], LagPoint.of(metrics)], LagPoint)


def latest_metrics(work: WorkArea) -> RemoteLogMetrics | None:
    """Return the metrics that were kept last; None if there are none. Raises as WorkArea.read."""
    return next(iter(work.read_if_there(LATEST, RemoteLogMetrics)), None)


def lag_history(work: WorkArea, now: int) -> list[LagPoint]:
    """Return the points of the last day before `now` (ms), in order. Raises as WorkArea.read."""
    return sorted(_points(work, now), key=lambda point: point.at)


def _points(work: WorkArea, now: int) -> Iterator[LagPoint]:
    for ago in range(_HOURS):
        path, begin = _hour_of(now - ago * _HOUR_MS)
        yield from (each for each in work.read_if_there(path, LagPoint) if begin <= each.at < begin + _HOUR_MS)


def _hour_of(moment: int) -> tuple[str, int]:
    """Return the path of the hour of `moment` (ms), and when it began."""
    hours = moment // _HOUR_MS
    return f"metrics/hours/{hours % _HOURS:02d}.jsonl", hours * _HOUR_MS
