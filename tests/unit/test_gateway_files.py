"""The systemd units and the container recipe in docs: systemd takes the units, and what all of them name exists."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
from configparser import RawConfigParser
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tiered_storage.settings.properties.sources import environment_variable
from tiered_storage.settings.settings import Settings, load_settings

PROJECT = Path(__file__).parents[2]
UNIT = PROJECT / "docs" / "gateway" / "tiered-storage-gateway.service"
SERVICE_UNIT = PROJECT / "docs" / "service" / "tiered-storage-service.service"
RECIPE = PROJECT / "docs" / "gateway" / "Containerfile"
PORT_VARIABLE = environment_variable("gateway.metrics.port")
PROGRAM = Path(sys.executable).with_name("tiered-storage")


def parsed_unit(file: Path) -> RawConfigParser:
    parsed = RawConfigParser()
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(file.read_text())
    return parsed


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", RECIPE.read_text(), flags=re.MULTILINE)
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def ensure_a_command(command: list[str]) -> None:
    """Run the command with its options as `--help` does: an unknown one fails."""
    assert command[0].rpartition("/")[2] == "tiered-storage"
    shown = subprocess.run([PROGRAM, *command[1:2], "--help"], capture_output=True, text=True, check=True)
    assert all(option in shown.stdout for option in command[2:] if option.startswith("--"))


def shown_commands(file: Path) -> list[list[str]]:
    """The words of the commands in a file's comments. They need root or a container engine, so no test runs them."""
    return [shlex.split(line) for line in re.findall(r"^#   (.*)", file.read_text(), re.MULTILINE)]


def test_the_commands_that_the_files_show_name_these_files_and_each_other() -> None:
    for unit in (UNIT, SERVICE_UNIT):
        [install] = shown_commands(unit)
        assert install[:2] == ["cp", unit.name]
        assert install[-1] == unit.stem
    build, start = shown_commands(RECIPE)
    assert PROJECT / build[build.index("-f") + 1] == RECIPE
    assert start[-1] == build[build.index("-t") + 1]


@pytest.mark.parametrize("unit", [UNIT, SERVICE_UNIT], ids=lambda unit: unit.stem)
def test_systemd_takes_the_unit(tmp_path: Path, unit: Path) -> None:
    sections = parsed_unit(unit)
    assert set(sections) - {"DEFAULT"} == {"Unit", "Service", "Install"}
    command = shlex.split(sections["Service"]["ExecStart"])
    ensure_a_command(command)
    if shutil.which("systemd-analyze") is None:
        return
    here = tmp_path / unit.name
    here.write_text(unit.read_text().replace(command[0], str(PROGRAM)).replace("User=remote-log", "User=root"))
    done = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (0, [])


def test_a_unit_waits_longer_than_its_program_takes_to_end() -> None:
    service = parsed_unit(UNIT)["Service"]

    assert int(service["TimeoutStopSec"]) * 1000 > Settings().gateway_shutdown_timeout_ms
    assert int(service["LimitNOFILE"]) > 4 * Settings().gateway_max_connections
    assert int(parsed_unit(SERVICE_UNIT)["Service"]["TimeoutStopSec"]) * 1000 > Settings().service_shutdown_timeout_ms


def test_the_recipe_copies_what_there_is_and_starts_the_gateway() -> None:
    steps = instructions()
    assert steps[0][0] == "FROM"
    copied = [source for name, text in steps if name == "COPY" for source in text.split()[:-1]]
    assert [source for source in copied if not (PROJECT / source).exists()] == []
    assert {"pyproject.toml", "requirements.txt", "README.md", "LICENSE", "include/tiered_storage"} <= set(copied)
    left_out = set((PROJECT / ".dockerignore").read_text().split())
    assert [source for source in copied if source.split("/")[0] in left_out] == []
    [entry] = [text for name, text in steps if name == "ENTRYPOINT"]
    ensure_a_command(json.loads(entry))
    assert ("USER", "remote-log") in steps


def environment_of_the_recipe() -> dict[str, str]:
    return dict(text.split("=", 1) for name, text in instructions() if name == "ENV")


def test_the_recipe_sets_what_the_gateway_reads(tmp_path: Path) -> None:
    config = tmp_path / "tiered_storage.yaml"
    config.write_text("bootstrap.servers: kafka-1:9092\n")

    settings = load_settings(config, environ=environment_of_the_recipe())

    [home] = [re.findall(r"--home-dir (\S+)", text) for name, text in instructions() if "useradd" in text]
    # The folder of the settings may not be writable.
    assert [str(settings.state_directory)] == home
    assert settings.gateway_metrics_port


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_probe_of_the_recipe_asks_the_gateways_page(status: int, code: int) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Show nothing."""

    [probe] = [text for name, text in instructions() if name == "HEALTHCHECK"]
    program, *arguments = json.loads(probe.partition("CMD ")[2])
    assert program == "python"
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        port = {PORT_VARIABLE: str(server.server_port)}
        assert PORT_VARIABLE in environment_of_the_recipe()
        done = subprocess.run([sys.executable, "-S", *arguments], env=port, capture_output=True, check=False)

    assert done.returncode == code
