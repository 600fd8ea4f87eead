"""Runs every benchmark, one after the other, and ends with one table of all goals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import HEADING, RESULTS, Goal

HERE = Path(__file__).parent


def main() -> int:
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        results.touch()
        for bench in sorted(HERE.glob("bench_*.py")):
            print(f"== {bench.name}", flush=True)
            environment = {**os.environ, RESULTS: str(results)}
            if subprocess.run([sys.executable, str(bench)], env=environment, check=False).returncode:
                failed.append(bench.name)
        goals = [Goal(**json.loads(line)) for line in results.read_text().splitlines()]
    print(f"\n{HEADING}")
    for goal in goals:
        print(goal)
    if failed:
        print(f"missed a goal or failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
