"""Kafka's own programs, run by the project's Java from Kafka's jars; see maven_jars.py."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from servers.maven_jars import MavenJars, fetched_jars
from tiered_storage_airflow.embedded.java import java_home

KAFKA = MavenJars("kafka", "4.3.1")

TOOL_SECONDS = 120

_COMPILER = "org.eclipse.jdt.internal.compiler.batch.Main"

# A small heap and the quick compiler alone: a broker starts in half the time.
_JVM_OPTIONS = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dstdout.encoding=UTF-8")

# DumpLogSegments expects every log to begin at offset 0, the broker's own ones too.
_BASE_OFFSET_COMPLAINT = re.compile(
    r"^Non-consecutive offsets in .*/0*(\d+)\.log\n  -1 is followed by \1$", re.MULTILINE
)


class RealKafkaError(RuntimeError):
    """A broker or a tool of Kafka did not do what the test needs; the message carries the end of its output."""


@dataclass(frozen=True, slots=True)
class KafkaPrograms:
    """Kafka's programs: the `java` that runs them and the jars they are in."""

    java: Path
    jars: tuple[Path, ...]

    @classmethod
    def fetched(cls, state: Path) -> Self:
        """Have the programs under `state`, downloading them the first time."""
        return cls(java_home(state, os.environ) / "bin" / "java", tuple(fetched_jars(KAFKA, state)))

    def command(self, main_class: str, *args: str) -> list[str]:
        class_path = ":".join(map(str, self.jars))
        return [str(self.java), *_JVM_OPTIONS, "-cp", class_path, main_class, *args]

    def tool(self, main_class: str, *args: str | Path) -> str:
        """Run one of Kafka's tools to its end and return what it wrote to its standard output.

        Raises RealKafkaError where it does not end with 0.
        """
        return self._run(main_class, *args).stdout

    def source(self, file: Path, classes: Path, *args: str | Path) -> str:
        """Compile a Java file of ours into the directory `classes` and run it; return its standard output.

        The compiler is one of the jars: the project's Java need not be a whole JDK. Raises as `tool` does.
        """
        return self.with_classes(file, classes).tool(file.stem, *args)

    def with_classes(self, file: Path, classes: Path) -> Self:
        """Compile a Java file of ours into the directory `classes`; return the programs with what is there."""
        jars = ":".join(map(str, self.jars))
        self._run(_COMPILER, "-17", "-proc:none", "-cp", jars, "-d", classes, file)
        return replace(self, jars=(*self.jars, classes))

    def dump_log_segments(self, files: Iterable[Path]) -> dict[Path, str]:
        """Let DumpLogSegments decode `files`, down to the records; return what it says of each.

        Raises RealKafkaError where it has any complaint: it writes those to its standard error, and ends well.
        """
        names = ",".join(map(str, files))
        options = ("--deep-iteration", "--print-data-log", "--files", names)
        run = self._run("org.apache.kafka.tools.DumpLogSegments", *options)
        if complaints := _BASE_OFFSET_COMPLAINT.sub("", run.stderr).strip():
            raise RealKafkaError(f"DumpLogSegments complains:\n{complaints[:4000]}")
        _, *parts = re.split(r"^Dumping (.*)\n", run.stdout, flags=re.MULTILINE)
        return dict(zip(map(Path, parts[::2]), parts[1::2], strict=True))

    def _run(self, main_class: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
        command = self.command(main_class, *map(str, args))
        run = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
        if run.returncode:
            raise RealKafkaError(f"{main_class} ended with {run.returncode}:\n{(run.stdout + run.stderr)[-4000:]}")
        return run
