"""`python -m tiered_storage_airflow.demo [--log-dir DIR]`: what `make demo` runs."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console

from tiered_storage.errors import TieredStorageError
from tiered_storage_airflow.demo.run import Demo
from tiered_storage_airflow.demo.setting_up import DemoPlaces
from tiered_storage_airflow.embedded.environment import PROJECT_ROOT
from tiered_storage_airflow.links import PAGE


def main() -> int:
    """Run the demo; return 0 only if every record was read back as written and the audit found nothing."""
    parser = argparse.ArgumentParser(prog="make demo", description="Tier a log directory from end to end.")
    parser.add_argument("--log-dir", type=Path, help="a stopped broker's log directory; only a copy of it is touched")
    parser.add_argument("--state", type=Path, default=PROJECT_ROOT / ".state" / "demo", help="where the demo works")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    places = DemoPlaces(arguments.state.resolve())
    try:
        Demo(places, arguments.log_dir.resolve() if arguments.log_dir else None, console).run()
    except TieredStorageError as error:
        console.print(f"the demo failed: {error}", markup=False, highlight=False, soft_wrap=True)
        return 1
    config = os.path.relpath(places.config)
    console.print(
        "All verified. To look around in Airflow: "
        f"make up CONFIG={config}, then http://127.0.0.1:8080; where data are: http://127.0.0.1:8080{PAGE} "
        f"(make down CONFIG={config} ends it)",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
