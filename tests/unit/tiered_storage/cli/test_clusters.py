"""Every command that takes settings takes those of another cluster by its name; the commands come from the parser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main

from support.command_line import mentions, run
from tiered_storage.cli import main as cli

WITHOUT_SETTINGS = {"dump", "move-partition", "version"}
VALUES = {
    "partition": "0",
    "properties": "local.retention.ms=1",
    "url": "sqlite:///moved.db",
}
"""Arguments that must be more than any word, by their names."""
MORE = {
    "restore": ("--dry-run",),
    "delete-records": ("--before", "1"),
    "follow": ("--directory", "replica"),
    "adopt": ("--from", "native.yaml"),
}
"""What a command wants besides, before it reads settings."""


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command that does something, with its names."""
    loaded = getattr(command, "loaded", command)
    if not hasattr(loaded, "commands"):
        yield path, loaded
        return
    for name, below in sorted(loaded.commands.items()):
        yield from leaves(below, (*path, name))


COMMANDS = dict(leaves(typer.main.get_command(cli.app)))
WITH_SETTINGS = sorted(path for path in COMMANDS if path[0] not in WITHOUT_SETTINGS)


def line(path: tuple[str, ...]) -> list[str]:
    """Return a command line with everything that the command demands."""
    given = [
        VALUES.get(str(each.name), "word")
        for each in COMMANDS[path].params
        if each.param_type_name == "argument" and each.required
    ]
    return [*path, *given, *MORE.get(path[0], ())]


@pytest.fixture(autouse=True)
def _west(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first cluster has settings, and those of west are wrong: they are a file that no YAML parser takes."""
    (tmp_path / "settings.yaml").write_text("state.directory: first\n")
    (tmp_path / "settings.west.yaml").write_text("[")
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(tmp_path / "settings.yaml"))
    monkeypatch.chdir(tmp_path)


def test_all_commands_take_settings_but_those_that_need_none() -> None:
    options = {path: {name for each in command.params for name in each.opts} for path, command in COMMANDS.items()}
    assert {path[0] for path, names in options.items() if "--cluster" not in names} == WITHOUT_SETTINGS
    assert len(WITH_SETTINGS) > 30


@pytest.mark.parametrize("path", WITH_SETTINGS, ids=" ".join)
def test_a_command_reads_the_settings_of_the_cluster_that_it_is_given(path: tuple[str, ...], tmp_path: Path) -> None:
    found = run(*line(path), "--cluster", "west")
    assert found.exit_code == 1
    said = found.out + found.err
    assert str(tmp_path / "settings.west.yaml") in said
    assert "not YAML" in said
    assert not (tmp_path / "first").exists()


@pytest.mark.parametrize("path", WITH_SETTINGS, ids=" ".join)
def test_a_cluster_that_is_not_there_is_an_error_that_names_those_that_are(path: tuple[str, ...]) -> None:
    found = run(*line(path), "--cluster", "north")
    assert (found.exit_code, found.out) == (1, "")
    assert mentions(found.err, "'north'", "west")


def test_a_folder_with_the_name_of_a_cluster_is_no_settings_file(tmp_path: Path) -> None:
    (tmp_path / "west").mkdir()
    assert str(tmp_path / "settings.west.yaml") in run("plan", "--cluster", "west").err
    (tmp_path / "north").mkdir()
    assert mentions(run("plan", "--cluster", "north").err, "'north'", "west")
