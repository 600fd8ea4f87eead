"""Runs targets in other processes, and reports the file of an input that crashed one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]
_STARTING_SECONDS = 60
_SHARED_MEMORY = Path("/dev/shm")
_UNCAUGHT = "=== Uncaught Python exception: ==="
_SHOWN = 4000


class FindingError(AssertionError):
    """A target fell over an input."""


@dataclass(frozen=True, slots=True)
class Fuzzing:
    """How long each target is fuzzed, and where corpora and failing inputs are kept."""

    seconds: int
    corpora: Path
    failing: Path
    seed: int = 0
    """Of the fuzzer's choices; 0: another one each time."""

    def run(self, targets: Sequence[str], *, interpreted: bool = False) -> int:
        """Fuzz `targets`, kernels interpreted or compiled; return how many inputs were tried.

        Raises FindingError, which names the files with the inputs that targets fell over.
        """
        self.failing.mkdir(parents=True, exist_ok=True)
        before = self._inputs(targets)
        settings = {
            "targets": list(targets), "seconds": self.seconds, "seed": self.seed, "interpreted": interpreted,
            "corpora": str(self.corpora.absolute()), "failing": str(self.failing.absolute()),
        }  # fmt: skip
        with tempfile.TemporaryDirectory(dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None) as work:
            done = subprocess.run(
                [sys.executable, "-m", "fuzz.program", json.dumps(settings)],
                cwd=work,
                env={**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": work},
                capture_output=True,
                text=True,
                errors="backslashreplace",
                check=False,
                timeout=len(targets) * (self.seconds + _STARTING_SECONDS),
            )
        said = done.stdout + done.stderr
        if done.returncode:
            inputs = ", ".join(sorted(map(str, self._inputs(targets) - before)))
            kept = inputs or "none was written, so it is one of the seeds"
            begin = said.find(_UNCAUGHT) if _UNCAUGHT in said else -_SHOWN
            last = said.strip().rpartition("\n")[2]
            raise FindingError(f"{last}; the input: {kept}\n{said[begin:][:_SHOWN]}")
        return sum(int(count) for count in re.findall(r"number_of_executed_units: (\d+)", said))

    def _inputs(self, targets: Sequence[str]) -> set[Path]:
        """The failing inputs of `targets` alone: others may be fuzzed into the same folder at the same time."""
        return {path for name in targets for path in self.failing.glob(f"{name}-*")}
