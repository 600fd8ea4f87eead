"""The compiled checksum against the library's, over every size that its stretches make different."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.kernels.constants import CRC_END
from tiered_storage.kafka_log.kernels.machine_code import address_of, has_wide_products, load_kernels

CHECKSUMS = """
import random
import numpy as np
from tiered_storage.kafka_log.kernels import checksum_kernels, machine_code, wide_checksum
from tiered_storage.kafka_log.kernels.checksum import crc32c

chance = random.Random(3)
content = chance.randbytes(1 << 20)
address = machine_code.address_of(np.frombuffer(content, "u1"))
for size in [*range(1100), *range(3000, 3700), *(chance.randrange(1 << 19) for _ in range(100))]:
    begin = chance.randrange(4096)
    found = checksum_kernels.crc32c_of(address + begin, size, address + len(content))
    assert found == crc32c(memoryview(content)[begin : begin + size]), (begin, size)
(code,) = checksum_kernels.crc32c_of.inspect_llvm().values()
assert ("pclmulqdq.512" in code) is wide_checksum.HAS_WIDE_PRODUCTS
print(wide_checksum.HAS_WIDE_PRODUCTS)
"""

CONTENT = np.random.default_rng(32).integers(0, 256, 20_000, np.uint8)


def _is_found_sound(content: bytes) -> bool:
    """Whether the kernel finds for `content` the checksum that the library does, and none that differs by a bit."""
    checksum = crc32c(content)
    statuss = []
    for claimed in (checksum, checksum ^ 1, checksum ^ 1 << 31):
        window = np.frombuffer(bytes(CRC_END - 4) + claimed.to_bytes(4, "big") + content, np.uint8)
        places = np.array([0]), np.array([window.size])
        addresses = [address_of(each) for each in places]
        statuss.append(load_kernels().first_mismatch(address_of(window), window.size, 0, *addresses, 1))
    return statuss == [-1, 0, 0]


@pytest.mark.parametrize("stretch", [0, 64, 128, 256, 320, 384, 512, 1024, 3072, 6144])
def test_the_kernel_is_right_at_the_ends_of_stretches(stretch: int) -> None:
    for size in range(max(stretch - 17, 0), stretch + 18):
        assert _is_found_sound(CONTENT[:size].tobytes()), size


@pytest.mark.parametrize("vectors", ["0", "1"])
def test_wide_products_are_used_where_the_cpu_has_them_and_numba_lets_them_be(vectors: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHECKSUMS],
        env={**os.environ, "NUMBA_ENABLE_AVX": vectors},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout.strip()) == (0, str(vectors == "1" and has_wide_products())), done.stderr


@given(begin=st.integers(0, 5000), size=st.integers(0, 15_000))
def test_the_kernel_is_right_for_bytes_that_begin_anywhere(begin: int, size: int) -> None:
    assert _is_found_sound(CONTENT[begin : begin + size].tobytes())


@given(content=st.binary(max_size=4000))
def test_the_kernel_is_right_for_any_bytes(content: bytes) -> None:
    assert _is_found_sound(content)


@pytest.mark.parametrize("sizes", [[118] * 7, range(8), range(60, 77), [1023, 5, 700, 1024, 8, 1100, 16, 3, 900]])
def test_the_first_wrong_one_of_contiguous_batches_is_found(sizes: Sequence[int]) -> None:
    contents = [CONTENT[size : 2 * size].tobytes() for size in sizes]
    window = np.frombuffer(b"".join(bytes(CRC_END - 4) + crc32c(one).to_bytes(4, "big") + one for one in contents), "B")
    wholes = np.array([CRC_END + size for size in sizes])
    places = np.cumsum(wholes) - wholes
    addresses = address_of(places), address_of(wholes), places.size

    assert load_kernels().first_mismatch(address_of(window), window.size, 0, *addresses) == -1
    for row, (place, whole) in enumerate(zip(places, wholes, strict=True)):
        for at in {place + CRC_END - 4, place + CRC_END - 1, place + whole - 1}:
            wrong = window.copy()
            wrong[at] ^= 0x80
            wrong[places[-1] + CRC_END - 1] ^= 1
            assert load_kernels().first_mismatch(address_of(wrong), wrong.size, 0, *addresses) == row, (row, at)
