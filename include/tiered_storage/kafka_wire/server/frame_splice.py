"""Replace parts of a frame without copying the rest."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tiered_storage.kafka_wire.connections.frames import SIZE_BYTES
from tiered_storage.kafka_wire.server.frame_protocol import Buffer

_SIZE: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Replacement:
    """What comes instead of the bytes from `start` to `end` (exclusive) of a frame."""

    start: int
    end: int
    buffers: Sequence[Buffer]


def spliced(frame: memoryview, replacements: Sequence[Replacement]) -> list[Buffer]:
    """Return the buffers of `frame`, which has its size, with `replacements` in their order, and with its new size."""
    buffers: list[Buffer] = [b""]
    at = SIZE_BYTES
    for each in replacements:
        buffers.append(frame[at : each.start])
        buffers.extend(each.buffers)
        at = each.end
    buffers.append(frame[at:])
    buffers[0] = _SIZE.pack(sum(map(len, buffers)))
    return buffers
