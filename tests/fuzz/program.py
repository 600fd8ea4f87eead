"""Fuzzes targets, a few at once, each in a process of its own: python -m fuzz.program SETTINGS, as JSON.

Ends with 0 where nothing was found. What was found goes to standard error, and the input into the directory `failing`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import atheris

from fuzz.target import Target

AT_ONCE = 2
SECONDS_AN_INPUT = 10
MOST_INPUT_BYTES = 8 << 10
ADDRESS_SPACE_BYTES = 1 << 30
"""What an input may make the process allocate, touched or not, beyond what it has once everything is imported."""
RESIDENT_BYTES = 256 << 20
"""How far one input may raise the memory in use: the output that targets allow is 1 MiB, but codecs keep windows."""
_INSTRUMENTED = [f"tiered_storage.{room}" for room in ("gateway", "kafka_log", "kafka_wire", "remote_log")]
"""What coverage guides through."""
MOST_INPUTS = 300_000
"""After so many a process ends, and another one continues: of each, atheris keeps what instrumented code compared where
that gave no plain bool. On a fast machine that is a GiB in two minutes."""


_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_HIGHEST = re.compile(rb"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Settings:
    """What to fuzz, for how many seconds each, with which seed (0: another one each time), and where files are kept."""

    targets: list[str]
    seconds: int
    seed: int
    interpreted: bool
    corpora: str
    failing: str

    @classmethod
    def read(cls, text: str) -> Self:
        return cls(**json.loads(text))


def main() -> None:
    settings = Settings.read(sys.argv[1])
    with atheris.instrument_imports(include=_INSTRUMENTED):
        if settings.interpreted:
            from fuzz.interpreted_kernels import interpret_kernels

            interpret_kernels()
        from fuzz.targets import FAULTY_TARGETS, TARGETS
    failed = _fuzz_all([{**TARGETS, **FAULTY_TARGETS}[name] for name in settings.targets], settings)
    if failed:
        sys.exit(f"{', '.join(failed)} fell over")


def _fuzz_all(targets: list[Target], settings: Settings) -> list[str]:
    """Return the names of the targets of which a process did not end well."""
    failed = []
    running: dict[int, tuple[Target, float]] = {}
    waiting = [(target, 0.0) for target in targets[::-1]]
    while waiting or running:
        if waiting and len(running) < AT_ONCE:
            target, end = waiting.pop()
            end = end or time.monotonic() + settings.seconds
            child = os.fork()
            if not child:
                _fuzz(target, settings, math.ceil(end - time.monotonic()))
                os._exit(0)
            running[child] = target, end
            continue
        child, status = os.wait()
        target, end = running.pop(child)
        if status:
            failed.append(target.name)
        elif end - time.monotonic() > 1:
            waiting.append((target, end))
    return sorted(failed)


def _fuzz(target: Target, settings: Settings, seconds: int) -> None:
    corpus = Path(settings.corpora) / target.name
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        target.run(seed)  # compiles or loads kernels, and fills what is made once
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    _limit_address_space()
    memory = _ResidentMemory()

    def run(content: bytes) -> None:
        memory.begin()
        target.run(content)
        assert memory.rise() <= RESIDENT_BYTES, f"memory rose by more than {RESIDENT_BYTES >> 20} MiB"

    prefix = Path(settings.failing) / f"{target.name}-"
    arguments = [
        target.name, str(corpus), f"-max_total_time={seconds}", f"-runs={MOST_INPUTS}", f"-timeout={SECONDS_AN_INPUT}",
        f"-max_len={MOST_INPUT_BYTES}", f"-artifact_prefix={prefix}", f"-seed={settings.seed}", "-print_final_stats=1",
    ]  # fmt: skip
    print(f"== {target.name}", file=sys.stderr, flush=True)  # noqa: T201 -- libFuzzer prints there as well
    atheris.Setup(arguments, run)
    atheris.Fuzz()


class _ResidentMemory:
    """The memory in use, as Linux reports it, and how far it rose since a moment, though it may have fallen again."""

    def begin(self) -> None:
        _CLEAR.write_text("5")  # the highest is from now on what there is now
        self._before = self._highest()

    def rise(self) -> int:
        return self._highest() - self._before

    def _highest(self) -> int:
        found = _HIGHEST.search(_STATUS.read_bytes())
        assert found
        return int(found[1]) << 10


def _limit_address_space() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ADDRESS_SPACE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
