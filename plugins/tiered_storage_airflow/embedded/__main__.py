"""`python -m tiered_storage_airflow.embedded up|status|down`: the embedded Airflow, by hand."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tiered_storage.errors import TieredStorageError
from tiered_storage.settings.properties.cluster_files import CONFIG_VARIABLE
from tiered_storage.settings.settings import load_settings
from tiered_storage_airflow.embedded import services
from tiered_storage_airflow.embedded.credentials import ADMIN, rights_path
from tiered_storage_airflow.embedded.environment import DEFAULT_PORT, EmbeddedAirflow
from tiered_storage_airflow.embedded.record import RunningAirflow

Config = Annotated[
    Path | None,
    typer.Option(help=f"The settings file; else {CONFIG_VARIABLE}, else include/tiered_storage.yaml."),
]
Port = Annotated[int, typer.Option(help="The port on loopback that Airflow answers on.")]

app = typer.Typer(help="The embedded Airflow.", add_completion=False, no_args_is_help=True)


@app.command()
def up(config: Config = None, port: Port = DEFAULT_PORT) -> None:
    """Start Airflow on this machine, for this machine only; scheduled DAGs start paused."""
    settings = load_settings(config)
    airflow = EmbeddedAirflow.of(settings, port)
    running = services.up(airflow, report=typer.echo)
    _describe(running)
    if (running.config, running.url) != (airflow.config, airflow.url):
        typer.echo(f"it was started with {running.config or 'no settings file'}: make down before you start another")


@app.command()
def status(config: Config = None) -> None:
    """Show what runs; exit with code 1 unless all of Airflow runs."""
    running = services.running_airflow(_state(config))
    if running is None:
        typer.echo("Airflow is not up")
        raise typer.Exit(1)
    for service in running.services:
        typer.echo(f"{service.name}: {f'process {service.pid}' if service.is_running() else 'ended'}")
    _describe(running)
    if not running.is_whole():
        raise typer.Exit(1)


@app.command()
def down(config: Config = None) -> None:
    """Stop Airflow and everything that it started; running tasks get some seconds to end."""
    stopped = services.down(_state(config), report=typer.echo)
    typer.echo("Airflow is down" if stopped else "Airflow was not up")


def _state(config: Path | None) -> Path:
    return load_settings(config).state_directory


def _describe(running: RunningAirflow) -> None:
    typer.echo(f"address:  {running.url}")
    typer.echo(f"user:     {ADMIN}, its password is in {_from_here(running.password_file)}")
    if running.has_own_rights:
        typer.echo(f"rights:   {_from_here(rights_path(running.home))} says who may see and read topics")
    typer.echo(f"logs:     {_from_here(running.service_logs)}")


def _from_here(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    try:
        app()
    except TieredStorageError as error:
        sys.exit(f"error: {error}")
