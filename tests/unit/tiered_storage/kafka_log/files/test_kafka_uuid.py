from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.files.kafka_uuid import (
    RESERVED_UUIDS,
    decode_uuid,
    decode_uuids,
    encode_uuid,
    encode_uuids,
    random_uuid,
)

unreserved = st.binary(min_size=16, max_size=16).filter(lambda raw: raw not in RESERVED_UUIDS)


@given(unreserved)
def test_a_uuid_survives_its_text(raw: bytes) -> None:
    text = encode_uuid(raw)

    assert len(text) == 22
    assert decode_uuid(text) == raw


def test_the_text_is_the_one_that_kafka_writes() -> None:
    assert encode_uuid(bytes.fromhex("27c00990c2324c5cafe9d58b4d2194c0")) == "J8AJkMIyTFyv6dWLTSGUwA"


@given(st.text(max_size=30))
@example("AAAAAAAAAAAAAAAAAAAAAA")
@example("AAAAAAAAAAAAAAAAAAAAAQ")
@example("cxfmXdFdRF2-6WITmvYjdB")
@example("cxfmXdFdRF2-6WITmvYjdA==")
@example("cxfmXdFdRF2+6WITmvYjdA")
def test_any_text_is_a_canonical_uuid_or_refused(text: str) -> None:
    try:
        raw = decode_uuid(text)
    except ConfigurationError:
        return
    assert encode_uuid(raw) == text


@given(st.lists(unreserved, max_size=5))
def test_many_uuids_are_read_and_written_as_each_alone(raws: list[bytes]) -> None:
    texts = [encode_uuid(raw) for raw in raws]

    assert encode_uuids(b"".join(raws)) == texts
    assert decode_uuids(texts) == b"".join(raws)


@given(st.text(max_size=30), unreserved)
@example("cxfmXdFdRF2-6WITmvYjdB", bytes(range(16)))
@example("cxfmXdFdRF2-6WITmvYjdA==", bytes(range(16)))
@example("cxfmXdFdRF2+6WITmvYjdA", bytes(range(16)))
@example("cxfmXdFdRF2 6WITmvYjdA", bytes(range(16)))
@example("\xe9" * 22, bytes(range(16)))
def test_many_texts_are_refused_if_any_is_no_uuid(text: str, raw: bytes) -> None:
    texts = [encode_uuid(raw), text]
    try:
        found = decode_uuids(texts)
    except ConfigurationError:
        with pytest.raises(ConfigurationError):
            decode_uuid(text)
        return
    assert encode_uuids(found) == texts


@pytest.mark.parametrize("raw", sorted(RESERVED_UUIDS))
def test_the_ids_that_kafka_reserves_are_refused(raw: bytes) -> None:
    with pytest.raises(ConfigurationError, match="reserves"):
        encode_uuid(raw)


def test_a_wrong_number_of_bytes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="16 bytes, not 15"):
        encode_uuid(bytes(15))


def random_source(*draws: bytes) -> Callable[[int], bytes]:
    remaining = iter(draws)
    return lambda _: next(remaining)


def test_a_random_uuid_is_of_version_4_and_never_begins_with_a_dash() -> None:
    begins_with_a_dash = b"\xfb" + bytes(15)

    text = random_uuid(random_source(begins_with_a_dash, b"\x01" * 16))

    assert decode_uuid(text).hex() == "01010101010141018101010101010101"
    assert not random_uuid(os.urandom).startswith("-")
