from __future__ import annotations

import inspect

import pytest

from tiered_storage import errors
from tiered_storage.gateway.fetch_errors import kafka_code, needs_a_person
from tiered_storage.kafka_wire.connections.error_codes import (
    FENCED_LEADER_EPOCH,
    KAFKA_STORAGE_ERROR,
    NONE,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_LEADER_EPOCH,
)

PARTITION = "orders-0"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.OffsetOutOfRangeError(PARTITION, 5, 10, 20), OFFSET_OUT_OF_RANGE),
        (errors.RecordsDeletedError(PARTITION, 5, 10, 20), OFFSET_OUT_OF_RANGE),
        (errors.FencedLeaderEpochError(PARTITION, 1, 2), FENCED_LEADER_EPOCH),
        (errors.UnknownLeaderEpochError(PARTITION, 3, 2), UNKNOWN_LEADER_EPOCH),
        (errors.DivergingEpochError(PARTITION, 5, 1, 4, 2), FENCED_LEADER_EPOCH),
        (errors.ReaderBusyError("busy"), NONE),
        (errors.ReadQuotaExceededError("over quota"), NONE),
        (errors.ReadTimedOutError("late"), NONE),
        (errors.RemoteObjectNotFoundError("lost"), KAFKA_STORAGE_ERROR),
        (errors.RemoteObjectCorruptError("corrupt"), KAFKA_STORAGE_ERROR),
        (errors.RemoteChunkCorruptError("corrupt"), KAFKA_STORAGE_ERROR),
        (errors.RemoteStorageRefusedError("no rights"), KAFKA_STORAGE_ERROR),
        (errors.EncryptionKeyError("no key"), KAFKA_STORAGE_ERROR),
        (errors.RemoteStorageError("out of reach"), KAFKA_STORAGE_ERROR),
        (errors.CorruptRecordError("a.log", 0, "garbled"), KAFKA_STORAGE_ERROR),
        (errors.CorruptIndexError("a.index", 0, "garbled"), KAFKA_STORAGE_ERROR),
        (errors.MetadataUnavailableError("locked"), KAFKA_STORAGE_ERROR),
        (errors.ConfigurationError("closed"), KAFKA_STORAGE_ERROR),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_each_error_has_its_code(error: errors.TieredStorageError, code: int) -> None:
    assert kafka_code(error) == code


def test_only_an_offset_outside_of_the_log_may_reset_a_consumer() -> None:
    kinds = [
        kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.TieredStorageError)
    ]

    resetting = {kind for kind in kinds if kafka_code(kind.__new__(kind)) == OFFSET_OUT_OF_RANGE}

    assert resetting == {errors.OffsetOutOfRangeError, errors.RecordsDeletedError}


def test_what_may_be_lost_needs_a_person() -> None:
    assert needs_a_person(KAFKA_STORAGE_ERROR)
    assert not needs_a_person(NONE)
    assert not needs_a_person(OFFSET_OUT_OF_RANGE)
