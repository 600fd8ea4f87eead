"""Spark sessions in separate processes: of the installed Spark, and of the Kafka connector's release."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from kafka_source_session import ANSWER
from measuring import STATE

from tiered_storage_airflow.demo_cluster.maven_jars import trust_options
from tiered_storage_airflow.embedded.environment import LOOPBACK, PROJECT_ROOT
from tiered_storage_airflow.embedded.java import java_home

CONNECTOR_SPARK = "4.0.0"
"""The release of Spark that the connector belongs to; it does not run in a later one."""
CONNECTOR = (
    "--packages", f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_SPARK}",
    "--conf", f"spark.jars.ivy={STATE / 'ivy'}",
)  # fmt: skip


class SessionProcess:
    """A process with a Spark session that runs a way on request; use it in a `with`."""

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str], errors: Path) -> None:
        self._errors = errors
        with errors.open("w") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def seconds_of(self, way: str) -> float:
        """Return how long a way took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{way}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                return float(line.removeprefix(ANSWER))
        raise SystemExit(f"the session failed, nothing was measured:\n{self._errors.read_text()[-6000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def spark_of_the_connector() -> Path:
    """Return a Python with the Spark that the connector runs in; install it if necessary."""
    folder = STATE / f"spark-{CONNECTOR_SPARK}"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"pyspark=={CONNECTOR_SPARK}"], check=True)
        (folder / "installed").touch()
    return python


def session_environment(directory: Path, python: Path, arguments: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment of a process with a session: its Java, and Spark's arguments."""
    trusted = " ".join(f'"{option}"' for option in trust_options(directory / "trusted.p12"))
    submitted = ["--master", "local[2]", "--conf", "spark.driver.memory=2g", *arguments, "pyspark-shell"]
    return {
        **os.environ,
        "SPARK_LOCAL_IP": LOOPBACK,
        "JDK_JAVA_OPTIONS": trusted,
        "PYSPARK_SUBMIT_ARGS": " ".join(submitted),
        "PYSPARK_PYTHON": str(python),
        "JAVA_HOME": str(java_home(PROJECT_ROOT / ".state", os.environ)),
    }
