"""Records of every shape that a topic can hold."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tiered_storage.kafka_log.records.record import Record

FIRST_TIMESTAMP = 1_700_000_000_000


def varied_records(count: int, seed: int) -> Iterator[Record]:
    """Yield records with and without keys, values and headers, from offset 0 on, the same ones for the same `seed`.

    They compress by about a half. Their times rise by 10 ms a record on the whole, but go back by up to half a second.
    """
    chance = random.Random(seed)  # noqa: S311 -- data, no secret
    for number in range(count):
        yield Record(
            offset=number,
            timestamp=FIRST_TIMESTAMP + 10 * number - chance.randrange(500),
            key=None if number % 5 == 0 else f"key {number % 50}".encode(),
            value=None if number % 7 == 3 else b"" if number % 7 == 4 else chance.randbytes(60).hex().encode(),
            headers=(("trace", chance.randbytes(8)), ("größe", None), ("trace", b""))[: number % 4],
        )
