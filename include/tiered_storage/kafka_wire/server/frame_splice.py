"""Replace parts of a frame without copying the rest."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tiered_storage.kafka_wire.connections.frames import SIZE_BYTES
from tiered_storage.kafka_wire.server.frame_protocol import Piece

_SIZE: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Replacement:
    """What comes instead of the bytes from `start` to `end` (exclusive) of a frame."""

    start: int
    end: int
    pieces: Sequence[Piece]


def spliced(frame: memoryview, replacements: Sequence[Replacement]) -> list[Piece]:
    """Return the pieces of `frame`, which has its size, with `replacements` in their order, and with its new size."""
    pieces: list[Piece] = [b""]
    at = SIZE_BYTES
    for each in replacements:
        pieces.append(frame[at : each.start])
        pieces.extend(each.pieces)
        at = each.end
    pieces.append(frame[at:])
    pieces[0] = _SIZE.pack(sum(map(len, pieces)))
    return pieces
