from __future__ import annotations

from typing import Any

import pytest
from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from tiered_storage.gateway.allowed_apis import ALLOWED, API_VERSIONS, capped_versions, refused_versions
from tiered_storage.kafka_wire.connections.frames import decode_answer


def answered(*ranges: tuple[int, int, int]) -> Any:
    kio = load_payload_module(API_VERSIONS.key, 0, EntityType.response)
    keys = tuple(kio.ApiVersion(api_key=key, min_version=oldest, max_version=latest) for key, oldest, latest in ranges)
    return kio.ApiVersionsResponse(error_code=ErrorCode.none, api_keys=keys)


def test_a_client_sees_what_both_the_broker_and_the_gateway_serve() -> None:
    later = answered((1, 0, 30), (3, 5, 7), (78, 0, 2), (999, 0, 0), (18, 0, 9), (0, 14, 20))

    found = capped_versions(later)

    ranges = {each.api_key: (each.min_version, each.max_version) for each in found.api_keys}
    assert ranges == {1: (4, 18), 3: (5, 7), 18: (0, 4)}


@pytest.mark.parametrize("key", sorted(ALLOWED))
def test_the_layout_of_every_allowed_version_is_known(key: int) -> None:
    api = ALLOWED[key]
    for version in range(api.oldest, api.latest + 1):
        assert load_request_schema(key, version).__version__ == version
        assert load_response_schema(key, version).__version__ == version


def test_a_version_that_the_gateway_does_not_know_is_answered_with_those_it_knows() -> None:
    frame = memoryview(refused_versions(12))

    found = decode_answer(frame[4:], API_VERSIONS, 0, 12)

    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert found.error_code is ErrorCode.unsupported_version
    assert [(each.api_key, each.min_version, each.max_version) for each in found.api_keys] == [(18, 0, 4)]
