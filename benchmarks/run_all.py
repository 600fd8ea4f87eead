"""Runs every benchmark, one after the other, and ends with one table of all goals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measuring import HEADING, RESULTS, Goal

HERE = Path(__file__).parent
ALSO = {"bench_fetch_partitions.py": ("--spark",)}
"""Benchmarks that run once more, with an argument."""


def runs() -> Iterator[tuple[str, ...]]:
    """Yield each benchmark's file name, with its arguments."""
    for bench in sorted(HERE.glob("bench_*.py")):
        yield (bench.name,)
        if bench.name in ALSO:
            yield bench.name, *ALSO[bench.name]


def main() -> int:
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        results.touch()
        environment = {**os.environ, RESULTS: str(results)}
        for name, *given in runs():
            shown = " ".join((name, *given))
            print(f"== {shown}", flush=True)
            if subprocess.run([sys.executable, str(HERE / name), *given], env=environment, check=False).returncode:
                failed.append(shown)
        goals = [Goal(**json.loads(line)) for line in results.read_text().splitlines()]
    print(f"\n{HEADING}")
    for goal in goals:
        print(goal)
    if failed:
        print(f"missed a goal or failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
