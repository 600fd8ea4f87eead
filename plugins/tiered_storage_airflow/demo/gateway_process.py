"""Runs `tiered-storage gateway` on a demo's settings, as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from tiered_storage_airflow.demo.expectation import DemoError
from tiered_storage_airflow.embedded.environment import LOOPBACK, virtual_environment_bin

_START_SECONDS = 120.0
_STOP_SECONDS = 60.0
_READY = "the gateway serves"


@contextmanager
def running_gateway(config: Path, state: Path, port: int, environ: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start the gateway on the settings of `config` and on `port`, yield its address, and end it.

    Its own settings and its log are below `state`. Raises DemoError if it does not serve.
    """
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    own, said = state / "gateway.yaml", state / "gateway.log"
    own.write_text(yaml.safe_dump({**settings, "gateway.port": port}, sort_keys=False), encoding="utf-8")
    command = [str(virtual_environment_bin() / "tiered-storage"), "gateway", "--config", str(own)]
    with said.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ)  # noqa: S603 - ours
    try:
        _wait_until_it_serves(process, said)
        yield f"{LOOPBACK}:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        finally:
            process.kill()


def _wait_until_it_serves(process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while _READY not in (said := log.read_text(encoding="utf-8")):
        if process.poll() is not None or time.monotonic() > end:
            raise DemoError(f"tiered-storage gateway does not serve: {said}")
        time.sleep(0.05)
