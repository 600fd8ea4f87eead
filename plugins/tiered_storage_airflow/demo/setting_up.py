"""The demo's settings file, and the commands that it gives as a user would."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tiered_storage.settings.properties.cluster_files import CONFIG_VARIABLE
from tiered_storage_airflow.demo.expectation import DemoError
from tiered_storage_airflow.demo.limits import TopicLimits
from tiered_storage_airflow.embedded.environment import LOOPBACK, virtual_environment_bin


@dataclass(frozen=True, slots=True)
class DemoPlaces:
    """Where the demo keeps things: all below `state`, which is removed at the next demo."""

    state: Path

    @property
    def log_directory(self) -> Path:
        """The log directory that is tiered: the sample, or a private copy."""
        return self.state / "kafka-logs"

    @property
    def config(self) -> Path:
        """The demo's settings file."""
        return self.state / "tiered_storage.yaml"

    @property
    def rights(self) -> Path:
        """Who may read through the read service."""
        return self.state / "read_rights.yaml"

    def write_config(self, limits: Sequence[TopicLimits], compacted: Sequence[str]) -> None:
        """Write the settings: one log directory, a local object store, and the topics that are switched on.

        Deletion is allowed only for the topics tiered here; a compacted topic is only marked as one.
        """
        switched_on = {
            limit.topic: {
                "remote.storage.enable": True,
                "local.deletion.allowed": True,
                "remote.deletion.allowed": True,
                "local.retention.bytes": limit.local_retention_bytes,
            }
            for limit in limits
        }
        settings = {
            "log.dirs": [str(self.log_directory)],
            "log.end.is.stable": True,
            # Limit by size alone: records of years ago would all be past any time limit.
            "log.retention.ms": -1,
            # No grace time, so that the demo shows the deletion.
            "remote.log.deletion.grace.ms": 0,
            # The copy's event starts the trim, without a manual run.
            "scheduled.deletion.enable": True,
            "state.directory": str(self.state),
            "read.service.rights.file": str(self.rights),
            "topics": switched_on | {topic: {"cleanup.policy": "compact"} for topic in compacted},
        }
        everything = {"read": ["*"]}
        self.rights.write_text(
            yaml.safe_dump({"roles": {"ADMIN": everything}, "users": {"admin": everything}, "admins": ["admin"]}),
            encoding="utf-8",
        )
        self.config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def tiered_storage(places: DemoPlaces, *arguments: str) -> None:
    """Run a command of `tiered-storage` on the demo's settings. Raises DemoError with its output if it fails."""
    status, said = _run(places, arguments)
    if status:
        raise DemoError(f"tiered-storage {' '.join(arguments)}: {said}")


def expect_refusal(places: DemoPlaces, *arguments: str) -> str:
    """Run a command that must be refused, and return its output. Raises DemoError if it succeeds."""
    status, said = _run(places, arguments)
    if not status:
        raise DemoError(f"tiered-storage {' '.join(arguments)} should have been refused, but was not")
    return said


def _run(places: DemoPlaces, arguments: Sequence[str]) -> tuple[int, str]:
    command = [str(virtual_environment_bin() / "tiered-storage"), *arguments]
    environment = {**os.environ, CONFIG_VARIABLE: str(places.config)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    return done.returncode, done.stderr.strip()
