"""What a consumer gets if remote records cannot be read: one table from our errors to Kafka's codes, and its alarms.

    below the global log start, or deleted during the read  OFFSET_OUT_OF_RANGE, and only then: after it a consumer
                                                            starts over by auto.offset.reset
    an epoch that is not the partition's                    FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH
    busy, over quota, or not in time                        no error and no records: a consumer asks again.
                                                            (REQUEST_TIMED_OUT, INVALID_REQUEST and the like end Java's
                                                            consumer)
    lost, corrupt or out of reach, and everything else      KAFKA_STORAGE_ERROR: a consumer asks for the leader again,
                                                            and then for the same offset

If the broker itself refuses a partition, consumers get its error if they expect it in a Fetch, else
KAFKA_STORAGE_ERROR.

Source: KIP-405; released Kafka's FetchCollector, which raises for a code that it does not expect.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from tiered_storage import errors
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.kafka_wire.connections.error_codes import (
    FENCED_LEADER_EPOCH,
    INCONSISTENT_TOPIC_ID,
    KAFKA_STORAGE_ERROR,
    LEADER_NOT_AVAILABLE,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_NOT_AVAILABLE,
    OFFSET_OUT_OF_RANGE,
    REPLICA_NOT_AVAILABLE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)

_log = logging.getLogger(__name__)

_CODES: Final[tuple[tuple[type[errors.TieredStorageError], int], ...]] = (
    (errors.FencedLeaderEpochError, FENCED_LEADER_EPOCH),
    (errors.DivergingEpochError, FENCED_LEADER_EPOCH),
    (errors.UnknownLeaderEpochError, UNKNOWN_LEADER_EPOCH),
    (errors.ReadRefusedError, NONE),
)
"""By class, the first that fits."""
_EXPECTED: Final = frozenset(
    {
        UNKNOWN_TOPIC_OR_PARTITION,
        NOT_LEADER_OR_FOLLOWER,
        REPLICA_NOT_AVAILABLE,
        TOPIC_AUTHORIZATION_FAILED,
        KAFKA_STORAGE_ERROR,
        FENCED_LEADER_EPOCH,
        UNKNOWN_LEADER_EPOCH,
        OFFSET_NOT_AVAILABLE,
        UNKNOWN_TOPIC_ID,
        INCONSISTENT_TOPIC_ID,
    }
)
"""What every consumer takes in an answer to Fetch; none of them resets its offset."""
_SILENT_SECONDS: Final = 600.0
_MOST_REMEMBERED: Final = 10_000
"""The most partitions whose last log line is remembered."""


def kafka_code(error: errors.TieredStorageError) -> int:
    """Return the error code of a partition whose remote records cannot be read because of `error`; 0: no records."""
    if isinstance(error, errors.OffsetOutOfRangeError):
        # Only the broker knows where the log ends: the remote log may have become shorter since the last look.
        return OFFSET_OUT_OF_RANGE if error.offset < error.start else KAFKA_STORAGE_ERROR
    return next((code for kind, code in _CODES if isinstance(error, kind)), KAFKA_STORAGE_ERROR)


def code_in_fetch(answered: int) -> int:
    """Return a Fetch's error code for a partition about which the broker answered a question with the error
    `answered`."""
    if answered == LEADER_NOT_AVAILABLE:
        # ListOffsets reports LEADER_NOT_AVAILABLE where Fetch reports NOT_LEADER_OR_FOLLOWER.
        return NOT_LEADER_OR_FOLLOWER
    return answered if answered in _EXPECTED else KAFKA_STORAGE_ERROR


def needs_a_person(code: int) -> bool:
    """Return whether records of a partition with this code may be lost, or stay out of reach."""
    return code == KAFKA_STORAGE_ERROR


class ReadFailures:
    """Counts every failed read, and logs one of a partition in ten minutes: a consumer asks again at once."""

    def __init__(self, metrics: GatewayMetrics, now: Callable[[], float] = time.monotonic) -> None:
        """Count in `metrics`; `now` is in seconds."""
        self._metrics = metrics
        self._now = now
        self._logged: OrderedDict[tuple[str, int], float] = OrderedDict()

    def failed(self, topic: str, partition: int, code: int, reason: str) -> None:
        """Report that a consumer got `code` for a partition, and why."""
        self._metrics.failed(topic, code)
        if not needs_a_person(code):
            _log.debug("%s-%s: %s", topic, partition, reason)
            return
        self._alarm(topic, partition, reason)

    def skipped(self, topic: str, partition: int, offsets: int, reason: str) -> None:
        """Report that a consumer continues after so many offsets that no tier has, and why."""
        self._metrics.skipped(topic, offsets)
        self._alarm(topic, partition, f"{reason}; consumers continue after it: gateway.skip.missing.offsets is set")

    def _alarm(self, topic: str, partition: int, reason: str) -> None:
        key, now = (topic, partition), self._now()
        if now - self._logged.get(key, -math.inf) < _SILENT_SECONDS:
            return
        self._logged[key] = now
        self._logged.move_to_end(key)
        if len(self._logged) > _MOST_REMEMBERED:
            self._logged.popitem(last=False)
        _log.error("%s-%s: %s", topic, partition, reason)
