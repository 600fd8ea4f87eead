"""What a consumer gets if remote records cannot be read: one table from our errors to Kafka's codes.

    below our log start, past the end, or deleted while it was read     OFFSET_OUT_OF_RANGE, and only then: after it a
                                                                        consumer starts over by auto.offset.reset
    an epoch that is not the partition's                                FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH
    busy, over quota, or not in time                                    no error and no records: a consumer asks again.
                                                                        (REQUEST_TIMED_OUT, INVALID_REQUEST and the like
                                                                        end Java's consumer)
    lost, corrupt or out of reach, and everything else                  KAFKA_STORAGE_ERROR: a consumer asks for the
                                                                        leader again, and then for the same offset

Source: KIP-405; released Kafka's FetchCollector, which raises for a code that it does not expect.
"""

from __future__ import annotations

from typing import Final

from tiered_storage import errors
from tiered_storage.kafka_wire.connections.error_codes import (
    FENCED_LEADER_EPOCH,
    KAFKA_STORAGE_ERROR,
    NONE,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_LEADER_EPOCH,
)

_CODES: Final[tuple[tuple[type[errors.TieredStorageError], int], ...]] = (
    (errors.OffsetOutOfRangeError, OFFSET_OUT_OF_RANGE),
    (errors.FencedLeaderEpochError, FENCED_LEADER_EPOCH),
    (errors.DivergingEpochError, FENCED_LEADER_EPOCH),
    (errors.UnknownLeaderEpochError, UNKNOWN_LEADER_EPOCH),
    (errors.ReadRefusedError, NONE),
)
"""By class, the first that fits."""


def kafka_code(error: errors.TieredStorageError) -> int:
    """Return the error code of a partition whose remote records cannot be read because of `error`; 0: no records."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), KAFKA_STORAGE_ERROR)


def needs_a_person(code: int) -> bool:
    """Return whether records of a partition with this code may be lost, or stay out of reach."""
    return code == KAFKA_STORAGE_ERROR
