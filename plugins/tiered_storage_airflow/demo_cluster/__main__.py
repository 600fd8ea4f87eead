"""`python -m tiered_storage_airflow.demo_cluster`: what `make demo-cluster` runs."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from rich.console import Console

from tiered_storage.errors import TieredStorageError
from tiered_storage_airflow.demo_cluster.run import ClusterDemo
from tiered_storage_airflow.embedded.environment import PROJECT_ROOT


def main() -> int:
    """Run the demo; return 0 only if every acknowledged record is in the tiers once and came to the consumer."""
    parser = argparse.ArgumentParser(prog="make demo-cluster", description="Copy from a live cluster under faults.")
    state = PROJECT_ROOT / ".state" / "demo-cluster"
    parser.add_argument("--state", type=Path, default=state, help="where the demo works")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long the clients work")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    # The servers end with us, however we are ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        is_right = ClusterDemo(arguments.state.resolve(), console, arguments.seconds).run()
    except TieredStorageError as error:
        console.print(f"the demo failed: {error}", markup=False, highlight=False, soft_wrap=True)
        return 1
    console.print("Nothing was lost, nothing is there twice." if is_right else "Not every record is right: see above.")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
