from __future__ import annotations

from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from support.command_line import mentions
from tiered_storage.errors import ClusterRefusedError, ClusterUnreachableError, SourceClusterError
from tiered_storage.kafka_wire.connections import error_codes
from tiered_storage.kafka_wire.connections.apis import (
    DELETE_RECORDS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    Api,
)
from tiered_storage.kafka_wire.connections.error_codes import MOVED, PartitionError, error_name, is_retriable

NAMED = {name: code for name, code in vars(error_codes).items() if name.isupper() and isinstance(code, int)}


def test_the_codes_are_kafkas() -> None:
    assert len(NAMED) > 15
    assert {name: ErrorCode[name.lower()].value for name in NAMED} == NAMED
    assert {name: error_name(code) for name, code in NAMED.items()} == {name: name for name in NAMED}


def test_after_every_error_that_names_a_new_leader_a_retry_may_succeed() -> None:
    assert all(is_retriable(code) for code in MOVED)


def test_a_code_of_a_later_kafka_is_shown_as_a_number() -> None:
    error = PartitionError("orders", 3, FETCH, 9999)
    assert not error.retriable
    assert mentions(str(error), "orders-3", "Fetch", "9999 (9999)")


@pytest.mark.parametrize(
    ("api", "right", "step"),
    [
        (FETCH, "Read", "(to copy)"),
        (LIST_OFFSETS, "Describe", "(to copy, trim, expire, watch and enable)"),
        (METADATA, "Describe", "(to copy, trim, expire, watch and enable)"),
        (OFFSET_FOR_LEADER_EPOCH, "Describe", "(to copy, trim, expire, watch and enable)"),
        (OFFSET_FETCH, "Describe", "(to trim)"),
        (DELETE_RECORDS, "Delete", "(to trim)"),
    ],
    ids=str,
)
def test_a_missing_right_is_named_with_the_steps_that_take_it(api: Api, right: str, step: str) -> None:
    error = PartitionError("orders", 3, api, error_codes.TOPIC_AUTHORIZATION_FAILED)
    assert mentions(str(error), api, f"right {right} ", step)
    assert f"--operation {right} --topic orders" in error.remedy
    assert type(error.as_exception()) is ClusterRefusedError


def test_the_page_lists_each_right_with_the_steps_that_the_messages_name() -> None:
    page = (Path(__file__).parents[5] / "docs" / "live-cluster.md").read_text()
    listed = [[cell.strip() for cell in line.strip(" |").split(" | ")] for line in page.splitlines() if "|" in line]
    wanted = {*error_codes._RIGHTS.values(), ("DescribeConfigs", error_codes.FOR_EVERY_STEP)}
    for right, step in wanted:
        assert any(row[0] == right and row[-1].startswith(f"{step}:") for row in listed), (right, step)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (error_codes.NETWORK_EXCEPTION, ClusterUnreachableError),
        (error_codes.NOT_LEADER_OR_FOLLOWER, SourceClusterError),
        (error_codes.OFFSET_OUT_OF_RANGE, ClusterRefusedError),
    ],
)
def test_an_error_to_raise_is_retriable_if_the_code_is(code: int, kind: type[SourceClusterError]) -> None:
    error = PartitionError("orders", 3, FETCH, code, "why")
    assert type(error.as_exception()) is kind
    assert error.as_exception().retriable == error.retriable
    assert "why" in str(error.as_exception())
