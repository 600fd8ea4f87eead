"""Which requests a gateway without brokers answers.

Requests of groups and producers are among them, and are refused: some clients do not fetch without these APIs, and a
refusal explains more than a missing API.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from kio.schema.errors import ErrorCode

from tiered_storage.gateway.allowed_apis import (
    ALLOWED,
    API_VERSIONS,
    DESCRIBE_CLUSTER,
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tiered_storage.kafka_wire.connections.error_codes import NONE
from tiered_storage.kafka_wire.connections.frames import answer, answer_module, encode_answer, entity

NO_ERROR: Final = ErrorCode(NONE)
NO_TIME: Final = timedelta(0)

OFFSET_COMMIT: Final = ALLOWED[8]
OFFSET_FETCH: Final = ALLOWED[9]
JOIN_GROUP: Final = ALLOWED[11]
HEARTBEAT: Final = ALLOWED[12]
LEAVE_GROUP: Final = ALLOWED[13]
SYNC_GROUP: Final = ALLOWED[14]
INIT_PRODUCER_ID: Final = ALLOWED[22]
DESCRIBE_CONFIGS: Final = ALLOWED[32]
CONSUMER_GROUP_HEARTBEAT: Final = ALLOWED[68]

LOGIN: Final = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)
"""Requests that a client may send before it is logged in."""
SERVED: Final = {
    api.key: api
    for api in (
        PRODUCE,
        FETCH,
        LIST_OFFSETS,
        METADATA,
        OFFSET_COMMIT,
        OFFSET_FETCH,
        FIND_COORDINATOR,
        JOIN_GROUP,
        HEARTBEAT,
        LEAVE_GROUP,
        SYNC_GROUP,
        API_VERSIONS,
        INIT_PRODUCER_ID,
        OFFSET_FOR_LEADER_EPOCH,
        DESCRIBE_CONFIGS,
        DESCRIBE_CLUSTER,
        CONSUMER_GROUP_HEARTBEAT,
    )
}
"""By their keys; with logins, those of LOGIN too."""


BEFORE_LOGIN: Final = {api.key: api for api in LOGIN}
AFTER_LOGIN: Final = {**SERVED, **BEFORE_LOGIN}


def served_versions(version: int, correlation_id: int, *, with_login: bool) -> bytes:
    """Return the frame that answers ApiVersions in a `version` that is known."""
    kind = answer_module(API_VERSIONS, version).ApiVersion
    apis = AFTER_LOGIN if with_login else SERVED
    offered = tuple(
        entity(kind, api_key=each.key, min_version=each.oldest, max_version=each.latest) for each in apis.values()
    )
    found = answer(API_VERSIONS, version, error_code=NO_ERROR, api_keys=offered, throttle_time=NO_TIME)
    return encode_answer(found, correlation_id)
