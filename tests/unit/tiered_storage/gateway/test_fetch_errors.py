from __future__ import annotations

import inspect

import pytest

from tiered_storage import errors
from tiered_storage.gateway.fetch_errors import ReadFailures, code_in_fetch, kafka_code, needs_a_person
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.kafka_wire.connections.error_codes import (
    FENCED_LEADER_EPOCH,
    KAFKA_STORAGE_ERROR,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_LEADER_EPOCH,
)

PARTITION = "orders-0"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.OffsetOutOfRangeError(PARTITION, 5, 10, 20), OFFSET_OUT_OF_RANGE),
        (errors.OffsetOutOfRangeError(PARTITION, 25, 10, 20), KAFKA_STORAGE_ERROR),
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
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.TieredStorageError) and not issubclass(kind, errors.OffsetOutOfRangeError)
    ]

    assert kinds
    assert not {kind for kind in kinds if kafka_code(kind.__new__(kind)) == OFFSET_OUT_OF_RANGE}


@pytest.mark.parametrize("code", [3, 6, 9, 29, 56, 74, 75, 78, 100, 103])
def test_a_brokers_error_that_consumers_expect_passes(code: int) -> None:
    assert code_in_fetch(code) == code


@pytest.mark.parametrize(
    ("answered", "code"),
    [(5, NOT_LEADER_OR_FOLLOWER), (1, KAFKA_STORAGE_ERROR), (7, KAFKA_STORAGE_ERROR), (-1, KAFKA_STORAGE_ERROR)],
)
def test_no_other_error_of_a_broker_reaches_a_consumer(answered: int, code: int) -> None:
    assert code_in_fetch(answered) == code


def test_a_partition_that_cannot_be_read_is_counted_each_time_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics, times = GatewayMetrics(), iter([0.0, 1.0, 2.0, 700.0])
    failures = ReadFailures(metrics, lambda: next(times))

    for partition in (0, 0, 1, 0):
        failures.failed("orders", partition, KAFKA_STORAGE_ERROR, "offset 5 is in neither tier")

    assert [record.getMessage()[:8] for record in caplog.records] == ["orders-0", "orders-1", "orders-0"]
    labels = {"topic": "orders", "error": "KAFKA_STORAGE_ERROR"}
    assert metrics.registry.get_sample_value("remote_log_gateway_remote_errors_total", labels) == 4


def test_a_transient_failure_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    ReadFailures(GatewayMetrics()).failed("orders", 0, NONE, "the store is slow")

    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_only_a_storage_error_needs_a_person() -> None:
    assert needs_a_person(KAFKA_STORAGE_ERROR)
    assert not needs_a_person(NONE)
    assert not needs_a_person(OFFSET_OUT_OF_RANGE)
