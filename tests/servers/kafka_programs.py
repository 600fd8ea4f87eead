"""Kafka's own programs, with what tests need besides: Java files of ours, and DumpLogSegments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tiered_storage_airflow.demo_cluster import kafka_programs
from tiered_storage_airflow.demo_cluster.maven_jars import MavenJars, fetched_jars

RealKafkaError = kafka_programs.KafkaProgramError

_COMPILER = "org.eclipse.jdt.internal.compiler.batch.Main"

_SCRIPTS = {
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-delete-records.sh": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-get-offsets.sh": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}
"""The class that each script of a Kafka release runs."""

# DumpLogSegments expects every log to begin at offset 0, the broker's own ones too.
_BASE_OFFSET_COMPLAINT = re.compile(
    r"^Non-consecutive offsets in .*/0*(\d+)\.log\n  -1 is followed by \1$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class KafkaPrograms(kafka_programs.KafkaPrograms):
    """Kafka's programs: the `java` that runs them and the jars they are in."""

    def earlier(self, version: str, state: Path) -> Self:
        """Return those of an earlier version, run by the same Java; the first time on a machine they are downloaded."""
        wanted = MavenJars("kafka", version, Path(__file__).with_name(f"kafka-{version.rpartition('.')[0]}"))
        return replace(self, jars=tuple(fetched_jars(wanted, state)))

    def source(self, file: Path, classes: Path, *args: str | Path) -> str:
        """Compile a Java file of ours into the directory `classes` and run it; return its standard output.

        The compiler is one of the jars: the project's Java need not be a whole JDK. Raises as `tool` does.
        """
        return self.with_classes(file, classes).tool(file.stem, *args)

    def with_classes(self, file: Path, classes: Path) -> Self:
        """Compile a Java file of ours into the directory `classes`; return the programs with what is there."""
        jars = ":".join(map(str, self.jars))
        self.run(_COMPILER, "-17", "-proc:none", "-cp", jars, "-d", classes, file)
        return replace(self, jars=(*self.jars, classes))

    def write_scripts(self, folder: Path) -> None:
        """Write into `folder` the scripts of a Kafka release's bin folder, which the jars lack."""
        for name, main_class in _SCRIPTS.items():
            script = folder / name
            script.write_text(f'#!/bin/sh\nexec {shlex.join(self.command(main_class))} "$@"\n')
            script.chmod(0o755)

    def dump_log_segments(self, files: Iterable[Path]) -> dict[Path, str]:
        """Let DumpLogSegments decode `files`, down to the records; return its output for each.

        Raises RealKafkaError where it has any complaint: it writes those to its standard error, and ends well.
        """
        names = ",".join(map(str, files))
        options = ("--deep-iteration", "--print-data-log", "--files", names)
        run = self.run("org.apache.kafka.tools.DumpLogSegments", *options)
        if complaints := _BASE_OFFSET_COMPLAINT.sub("", run.stderr).strip():
            raise RealKafkaError(f"DumpLogSegments complains:\n{complaints[:4000]}")
        _, *parts = re.split(r"^Dumping (.*)\n", run.stdout, flags=re.MULTILINE)
        return dict(zip(map(Path, parts[::2]), parts[1::2], strict=True))
