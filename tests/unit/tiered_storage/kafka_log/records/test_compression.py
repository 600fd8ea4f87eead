from __future__ import annotations

import contextlib
import gzip
import struct
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from isal import isal_zlib

from golden.framings import BROKEN_FRAMINGS, FRAMINGS, ODD_FRAMINGS, REFUSED_FRAMINGS, WRONGLY_SUMMED
from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.records import compression, whole_decompression
from tiered_storage.kafka_log.records.compression import Compression, compress, decompress

CODECS = list(Compression)
REAL_CODECS = CODECS[1:]
TEXT = b"the quick brown fox jumps over the lazy dog; " * 4000
MIB = 1 << 20
OF_LZ4 = ("two frames", "a skippable frame before it")
"""What a broker refuses by the records that are missing then: we read the contents, or as far as the first frame."""

payloads = st.binary(max_size=500) | st.builds(
    lambda unit, times: unit * times, st.binary(max_size=20), st.integers(0, 9999)
)


@pytest.mark.parametrize("codec", CODECS)
@given(data=payloads)
def test_data_survives_each_codec(codec: Compression, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_data_of_many_blocks_survives_each_codec(codec: Compression) -> None:
    data = TEXT * 40

    packed = compress(codec, data)

    assert decompress(codec, memoryview(packed)) == data


@pytest.mark.parametrize("name", [*FRAMINGS, *REFUSED_FRAMINGS])
def test_every_framing_of_a_codec_is_read(name: str) -> None:
    framing = {**FRAMINGS, **REFUSED_FRAMINGS}[name]

    packed = framing.pack(TEXT)

    assert framing.is_shown_by(packed)
    assert decompress(framing.codec, packed) == TEXT


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_every_truncation_is_named_as_broken(codec: Compression) -> None:
    packed = compress(codec, b"some text, some text, some other text")
    # xerial's header alone is whole, too, and fewer than four bytes after it are no block's size
    whole = {len(packed), *range(16, 20)} if codec is Compression.SNAPPY else {len(packed)}

    for end in set(range(len(packed))) - whole:
        with pytest.raises(CorruptRecordError):
            decompress(codec, packed[:end])


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_an_error_names_source_position_and_codec(codec: Compression) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        decompress(
            codec, b"\x12\x34\x56 is no codec's beginning", source="00000000000000000007.log", source_position=99
        )

    assert caught.value.path == "00000000000000000007.log"
    assert caught.value.position == 99
    assert f"{codec.name.lower()} data is broken" in caught.value.reason


@pytest.mark.parametrize("codec", REAL_CODECS)
@given(data=st.binary(max_size=200))
def test_random_bytes_decompress_to_some_output_or_our_error(codec: Compression, data: bytes) -> None:
    with contextlib.suppress(CorruptRecordError):
        decompress(codec, data)


@pytest.mark.parametrize("codec", REAL_CODECS)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_gives_our_error_or_some_output(codec: Compression, place: float, bit: int) -> None:
    packed = bytearray(compress(codec, TEXT[:3000]))
    packed[int(place * len(packed))] ^= 1 << bit

    with contextlib.suppress(CorruptRecordError):
        decompress(codec, bytes(packed))


@pytest.mark.parametrize("codec", REAL_CODECS)
@given(data=payloads, changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=3)), max_size=2))
def test_decompressing_at_once_equals_streaming(
    codec: Compression, data: bytes, changes: list[tuple[float, bytes]]
) -> None:
    packed = bytearray(compress(codec, data))
    for place, replacement in changes:
        at = int(place * len(packed))
        packed[at : at + 1] = replacement

    assert _read_or_refuse(codec, bytes(packed)) == _read_or_refuse(codec, bytes(packed), at_once=False)


@pytest.mark.parametrize("tail", [b"", b"\x00", TEXT[:100], b"\x28\xb5\x2f\xfd"])
@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_decompressing_at_once_treats_trailing_bytes_as_streaming_does(codec: Compression, tail: bytes) -> None:
    packed = compress(codec, TEXT)
    trailer = packed[-8:]

    for data in (packed, packed + tail, packed + trailer, packed * 2, compress(codec, b"") + packed, packed[:-1]):
        assert _read_or_refuse(codec, data) == _read_or_refuse(codec, data, at_once=False)


def test_gzip_of_several_members_is_read() -> None:
    assert decompress(Compression.GZIP, gzip.compress(b"first, ") + gzip.compress(b"second")) == b"first, second"


def test_the_input_handed_to_gzip_grows_with_its_members_and_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The decompressor copies the input after a member: copying all of it each time would be 5000 times the input."""
    handed = 0

    class Member:
        def __init__(self, wbits: int) -> None:
            self._member = isal_zlib.decompressobj(wbits)

        def decompress(self, data: memoryview, most: int) -> bytes:
            nonlocal handed
            handed += len(data)
            content: bytes = self._member.decompress(data, most)
            return content

        def __getattr__(self, name: str) -> object:
            return getattr(self._member, name)

    monkeypatch.setattr(compression, "isal_zlib", SimpleNamespace(decompressobj=Member))
    members = gzip.compress(b"", mtime=0) * 10_000

    assert decompress(Compression.GZIP, members) == b""
    assert len(members) <= handed <= 100 * len(members)


def test_zstd_of_several_frames_without_sizes_is_read() -> None:
    first, second = (zstandard.ZstdCompressor().compressobj() for _ in range(2))
    frames = first.compress(TEXT) + first.flush() + second.compress(b"more") + second.flush()

    assert decompress(Compression.ZSTD, frames) == TEXT + b"more"


def test_raw_snappy_is_read_as_librdkafka_writes_it() -> None:
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


def test_snappy_is_framed_in_blocks_of_32_kib_as_java_reads_it() -> None:
    packed = compress(Compression.SNAPPY, TEXT)

    assert packed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    blocks, position = [], 16
    while position < len(packed):
        (size,) = struct.unpack_from(">i", packed, position)
        blocks.append(bytes(cramjam.snappy.decompress_raw(packed[position + 4 : position + 4 + size])))
        position += 4 + size
    assert [len(block) for block in blocks] == [32768] * 5 + [len(TEXT) - 5 * 32768]
    assert b"".join(blocks) == TEXT


def test_lz4_blocks_are_independent_as_java_demands() -> None:
    frame = lz4.frame.get_frame_info(compress(Compression.LZ4, TEXT))

    assert not frame["block_linked"]
    assert frame["block_size"] == 65536


@pytest.mark.parametrize("name", ODD_FRAMINGS)
@pytest.mark.parametrize("text", [b"some text, some other text", TEXT], ids=["short", "long"])
def test_trailing_bytes_are_read_as_a_broker_reads_them(name: str, text: bytes) -> None:
    framing = ODD_FRAMINGS[name]

    assert decompress(framing.codec, framing.pack(text)) == text


@pytest.mark.parametrize("name", [name for name in BROKEN_FRAMINGS if name.split(", ")[1] not in OF_LZ4])
@pytest.mark.parametrize("text", [b"some text, some other text", TEXT], ids=["short", "long"])
def test_trailing_bytes_are_refused_as_a_broker_refuses_them(name: str, text: bytes) -> None:
    framing = BROKEN_FRAMINGS[name]

    with pytest.raises(CorruptRecordError, match="data is broken"):
        decompress(framing.codec, framing.pack(text))


def test_a_wrong_checksum_of_an_lz4_frame_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match="Checksum"):
        decompress(Compression.LZ4, WRONGLY_SUMMED.pack(TEXT))


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_trailing_bytes_take_no_more_memory_than_their_size(codec: Compression) -> None:
    tail = bytes(MIB) if codec is not Compression.SNAPPY else compress(codec, b"") * (MIB // 16)
    packed = compress(codec, TEXT) + tail
    tracemalloc.start()
    try:
        with contextlib.suppress(CorruptRecordError):
            decompress(codec, packed, max_bytes=len(TEXT))
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [-5, 1000])
def test_a_snappy_block_that_leaves_its_stream_is_refused(size: int) -> None:
    packed = compress(Compression.SNAPPY, b"")

    with pytest.raises(CorruptRecordError, match="byte 16 of 30"):
        decompress(Compression.SNAPPY, packed + struct.pack(">i", size) + bytes(10))


@pytest.mark.parametrize("codec", CODECS)
def test_output_stops_at_its_cap(codec: Compression) -> None:
    packed = compress(codec, TEXT)

    assert decompress(codec, packed, max_bytes=len(TEXT)) == TEXT
    with pytest.raises(CorruptRecordError, match=f"{len(TEXT) - 1} bytes"):
        decompress(codec, packed, max_bytes=len(TEXT) - 1)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_a_bomb_ends_long_before_it_is_unpacked(codec: Compression) -> None:
    bomb = compress(codec, bytes(256 * MIB)) if codec is not Compression.SNAPPY else _raw_snappy_that_claims(3 << 30)

    peak = _peak_memory_of_refusing(codec, bomb)

    assert peak < 64 * MIB


def test_a_claim_of_gigabytes_allocates_nothing() -> None:
    lz4_context = lz4.frame.create_compression_context()
    lz4_frame = lz4.frame.compress_begin(lz4_context, source_size=8 << 30) + lz4.frame.compress_chunk(lz4_context, b"x")
    zstd_frame = zstandard.ZstdCompressor().compressobj(size=8 << 30)
    claims = {
        Compression.LZ4: lz4_frame + lz4.frame.compress_flush(lz4_context, end_frame=False),
        Compression.ZSTD: zstd_frame.compress(b"x") + zstd_frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK),
        Compression.SNAPPY: _raw_snappy_that_claims(3 << 30),
    }

    for codec, packed in claims.items():
        assert _peak_memory_of_refusing(codec, packed) < 4 * MIB, codec


def test_threads_do_not_share_codec_objects() -> None:
    def survives(data: bytes) -> bool:
        return all(decompress(codec, compress(codec, data)) == data for codec in CODECS * 5)

    with ThreadPoolExecutor(max_workers=4) as threads:
        assert all(threads.map(survives, [bytes([i]) * 100_000 + TEXT for i in range(8)]))
        # That two threads had one would show now and then only, as a crash.
        all_are_there = Barrier(4)
        codecs = [*threads.map(lambda _: (all_are_there.wait(60), *_codec_objects())[1:], range(4))]
    assert len({id(each) for of_a_thread in codecs for each in of_a_thread}) == 4 * len(codecs[0])


def _codec_objects() -> list[object]:
    return [*vars(compression._codecs).values(), *vars(whole_decompression._codecs).values()]


def _raw_snappy_that_claims(size: int) -> bytes:
    out = bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(out) + bytes([size]) + b"\x00x" * 500


def _read_or_refuse(codec: Compression, data: bytes, *, at_once: bool = True) -> bytes | None:
    """Return what `data` holds, or None where it is refused."""
    with pytest.MonkeyPatch.context() as patch:
        if not at_once:
            patch.setattr(compression, "_whole", lambda *_: None)
        try:
            return decompress(codec, data)
        except CorruptRecordError:
            return None


def _peak_memory_of_refusing(codec: Compression, packed: bytes) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError):
            decompress(codec, packed, max_bytes=MIB)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_snappy_block_that_claims_more_than_is_allowed_is_not_decompressed() -> None:
    packed = compress(Compression.SNAPPY, bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError, match="holds more than"):
            decompress(Compression.SNAPPY, packed, max_bytes=1000)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
