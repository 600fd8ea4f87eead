"""`python -m tiered_storage_airflow.embedded.airflow_command [--config FILE] ARGUMENTS`: what `make airflow` runs.

Runs Airflow's own command line in the environment of the running embedded Airflow: with its database, its DAGs and its
secrets. The first argument that is not ours, and all after it, go to `airflow` unchanged.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tiered_storage.errors import TieredStorageError
from tiered_storage.settings.settings import load_settings
from tiered_storage_airflow.embedded.credentials import read
from tiered_storage_airflow.embedded.environment import (
    DEFAULT_PORT,
    EmbeddedAirflow,
    airflow_environment,
    virtual_environment_bin,
)
from tiered_storage_airflow.embedded.java import java_home
from tiered_storage_airflow.embedded.processes import EmbeddedAirflowError
from tiered_storage_airflow.embedded.services import running_airflow


def airflow_command(
    state: Path, arguments: Sequence[str], environ: Mapping[str, str] = os.environ
) -> tuple[list[str], dict[str, str]]:
    """Return a command of Airflow's with `arguments`, and the whole environment in which to run it.

    Raises EmbeddedAirflowError if no Airflow of the state directory `state` is up.
    """
    running = running_airflow(state)
    if running is None:
        raise EmbeddedAirflowError(f"no Airflow of {state} is up: start it with make up")
    port = urlsplit(running.url).port or DEFAULT_PORT
    airflow = EmbeddedAirflow(state, running.config, port, has_own_rights=running.has_own_rights)
    environment = airflow_environment(airflow, read(running.home), java_home(state, environ), environ)
    return [str(virtual_environment_bin() / "airflow"), *arguments], environment


def main(given: Sequence[str]) -> None:
    """Become Airflow's command line."""
    parser = argparse.ArgumentParser(prog="make airflow", description="Airflow's own command line.")
    parser.add_argument("--config", type=Path, help="the settings file that Airflow was started with")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="a command of Airflow's, such as: dags list")
    options = parser.parse_args(given)
    command, environment = airflow_command(load_settings(options.config).state_directory, options.arguments)
    os.execve(command[0], command, environment)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except TieredStorageError as error:
        sys.exit(f"error: {error}")
