"""Kafka's text form of a UUID, as in topic ids and directory ids.

Sixteen bytes, most significant first, in base64 with `-` and `_` and without padding: 22 characters. Kafka reserves
zero (no id) and one (the metadata topic), and its random ids never begin with a dash.

Source: KIP-516; released Kafka.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

from tiered_storage.errors import ConfigurationError

UUID_BYTES = 16
TEXT_LENGTH = 22
RESERVED_UUIDS = frozenset({bytes(UUID_BYTES), bytes(UUID_BYTES - 1) + b"\x01"})
_PADDED_BYTES, _PADDED_LENGTH, _PADDING = 18, 24, "AA"
"""A UUID with two bytes of zero after it: base64 of many in a row is that of each in a row."""


def encode_uuid(raw: bytes) -> str:
    """Return Kafka's text for the 16 bytes `raw`.

    Raises ConfigurationError if there are not 16 bytes or Kafka reserves the value.
    """
    if len(raw) != UUID_BYTES:
        raise ConfigurationError(f"a UUID has {UUID_BYTES} bytes, not {len(raw)}")
    if raw in RESERVED_UUIDS:
        raise ConfigurationError(f"the UUID 0x{raw.hex()} is one that Kafka reserves: choose another")
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode_uuid(text: str) -> bytes:
    """Return the 16 bytes that `text` stands for.

    Raises ConfigurationError if it is not exactly what `encode_uuid` would write.
    """
    not_a_uuid = f"{text[: TEXT_LENGTH + 2]!r} is not a UUID as Kafka writes it: {TEXT_LENGTH} characters of base64url"
    if len(text) != TEXT_LENGTH or not text.isascii():
        raise ConfigurationError(not_a_uuid)
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ConfigurationError(not_a_uuid) from error
    if encode_uuid(raw) != text:
        raise ConfigurationError(not_a_uuid)
    return raw


def encode_uuids(raw: bytes | bytearray) -> list[str]:
    """Return `encode_uuid` of the UUIDs that stand in `raw` one after the other; reserved ones are not refused."""
    padded = bytearray(_PADDED_BYTES * len(raw) // UUID_BYTES)
    for at in range(UUID_BYTES):
        padded[at::_PADDED_BYTES] = raw[at::UUID_BYTES]
    text = base64.urlsafe_b64encode(padded).decode()
    return [text[at : at + TEXT_LENGTH] for at in range(0, len(text), _PADDED_LENGTH)]


def decode_uuids(texts: Sequence[str]) -> bytes:
    """Return `decode_uuid` of each of `texts`, one after the other; reserved ones are not refused.

    Raises ConfigurationError if any is invalid.
    """
    raw = bytearray(UUID_BYTES * len(texts))
    with suppress(ValueError):
        padded = base64.urlsafe_b64decode(_PADDING.join((*texts, "")))
        for at in range(UUID_BYTES):
            raw[at::UUID_BYTES] = padded[at::_PADDED_BYTES]
    if encode_uuids(raw) != [*texts]:
        raise ConfigurationError("one of many UUIDs is not as Kafka writes it")
    return bytes(raw)


def random_uuid(random_bytes: Callable[[int], bytes] = os.urandom) -> str:
    """Return the text of a new random UUID (version 4) that Kafka itself could have generated."""
    while True:
        raw = UUID(bytes=random_bytes(UUID_BYTES), version=4).bytes
        text = encode_uuid(raw)
        if not text.startswith("-"):
            return text
