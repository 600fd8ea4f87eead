"""All targets, by their names."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from fuzz.append_targets import APPEND_TARGETS
from fuzz.batch_targets import BATCH_TARGETS
from fuzz.codec_targets import CODEC_TARGETS
from fuzz.directory_targets import DIRECTORY_TARGETS
from fuzz.dump_targets import DUMP_TARGETS
from fuzz.file_targets import FILE_TARGETS
from fuzz.gateway_targets import GATEWAY_TARGETS
from fuzz.guarded_memory import GuardedRegion
from fuzz.remote_targets import REMOTE_TARGETS
from fuzz.target import Target
from fuzz.wire_targets import WIRE_TARGETS


def _by_name(targets: Iterable[Target]) -> dict[str, Target]:
    return {target.name: target for target in targets}


TARGETS = _by_name(
    (
        *BATCH_TARGETS,
        *APPEND_TARGETS,
        *CODEC_TARGETS,
        *FILE_TARGETS,
        *DIRECTORY_TARGETS,
        *DUMP_TARGETS,
        *REMOTE_TARGETS,
        *WIRE_TARGETS,
        *GATEWAY_TARGETS,
    )
)
WITH_KERNELS = [name for name, target in TARGETS.items() if target.has_kernels]


def _read_outside(content: bytes) -> None:
    region = GuardedRegion(1)
    if b"!" in content:
        ctypes.string_at(region.at_end(1).ctypes.data + 1, 1)


def _raise(content: bytes) -> None:
    if b"!" in content:
        raise KeyError("a decoder's own error")


def _loop(content: bytes) -> None:
    while b"!" in content:
        pass


def _grow(content: bytes) -> None:
    if b"!" in content:
        bytes(b"x" * (300 << 20))


def _claim(content: bytes) -> None:
    if b"!" in content:
        bytearray(2 << 30)


FAULTY_TARGETS = _by_name(
    Target(fault.__name__, fault, lambda: [b"sound"]) for fault in (_read_outside, _raise, _loop, _grow, _claim)
)
"""Faulty decoders that the fuzzer must find."""
