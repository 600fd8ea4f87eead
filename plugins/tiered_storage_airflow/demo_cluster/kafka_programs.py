"""Kafka's own programs, run by the project's Java from Kafka's jars; see maven_jars.py."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tiered_storage.errors import TieredStorageError
from tiered_storage_airflow.demo_cluster.maven_jars import MavenJars, fetched_jars
from tiered_storage_airflow.embedded.java import java_home

KAFKA = MavenJars("kafka", "4.3.1", Path(__file__).parent)

TOOL_SECONDS = 120
START_SECONDS = 180
STOP_SECONDS = 60
STOPPED_BY_SIGTERM = 128 + signal.SIGTERM

# A small heap and the quick compiler alone: a broker starts in half the time.
_JVM_OPTIONS = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dstdout.encoding=UTF-8")


class KafkaProgramError(TieredStorageError):
    """A broker or a tool of Kafka did not do what it was started for; the message has the end of its output."""


@dataclass(frozen=True, slots=True)
class KafkaPrograms:
    """Kafka's programs: the `java` that runs them, the jars they are in, and Java's options."""

    java: Path
    jars: tuple[Path, ...]
    jvm_options: tuple[str, ...] = _JVM_OPTIONS

    @classmethod
    def fetched(cls, state: Path) -> Self:
        """Have the programs under `state`, downloading them the first time."""
        return cls(java_home(state, os.environ) / "bin" / "java", tuple(fetched_jars(KAFKA, state)))

    def command(self, main_class: str, *args: str) -> list[str]:
        """Return the command that runs a class."""
        class_path = ":".join(map(str, self.jars))
        return [str(self.java), *self.jvm_options, "-cp", class_path, main_class, *args]

    def tool(self, main_class: str, *args: str | Path, given: str | None = None) -> str:
        """Run one of Kafka's tools to its end and return what it wrote to its standard output; it reads `given`.

        Raises KafkaProgramError if it does not end with 0.
        """
        return self.run(main_class, *args, given=given).stdout

    def run(self, main_class: str, *args: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a class to its end. Raises as `tool`."""
        command = self.command(main_class, *map(str, args))
        # As bytes: Python's text mode turns the carriage returns of a record that a tool shows into line feeds.
        done = subprocess.run(  # noqa: S603 - the project's own Java
            command,
            input=(given or "").encode(),
            capture_output=True,
            timeout=TOOL_SECONDS,
            check=False,
        )
        out, complaints = done.stdout.decode(), done.stderr.decode(errors="replace")
        if done.returncode:
            raise KafkaProgramError(f"{main_class} ended with {done.returncode}:\n{(out + complaints)[-4000:]}")
        return subprocess.CompletedProcess(command, done.returncode, out, complaints)


class BrokerProcess:
    """The process of one broker, which works in `directory` and listens at `address`; it can start again and again."""

    def __init__(self, programs: KafkaPrograms, directory: Path, address: str) -> None:
        """Start nothing yet."""
        self._programs = programs
        self._directory = directory
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_started(self) -> bool:
        """Whether it was started, and neither stopped nor killed since."""
        return self._process is not None

    def write_properties(self, properties: Mapping[str, str]) -> Path:
        """Write the broker's properties file; return its path."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return path

    def launch(self) -> None:
        """Start the broker with the properties written last; `wait_until_it_serves` waits for it."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - the project's own Java
                self._programs.command("kafka.Kafka", str(self._directory / "server.properties")),
                cwd=self._directory,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C ends us, and we then end the broker.
                start_new_session=True,
            )

    def wait_until_it_serves(self) -> None:
        """Wait for the first answer. Raises KafkaProgramError if it ends, or does not serve within START_SECONDS."""
        end = time.monotonic() + START_SECONDS
        while not self._serves():
            if self._process is None or self._process.poll() is not None:
                raise KafkaProgramError(f"the broker ended before it served:\n{self.output_tail()}")
            if time.monotonic() > end:
                raise KafkaProgramError(f"the broker did not serve within {START_SECONDS} s:\n{self.output_tail()}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End the broker by SIGTERM, which leaves complete files; does nothing if it does not run.

        Raises KafkaProgramError if it does not end within STOP_SECONDS (it is killed then), or ended by itself.
        """
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise KafkaProgramError(f"the broker did not stop in {STOP_SECONDS} s:\n{self.output_tail()}") from None
        if code != STOPPED_BY_SIGTERM:
            raise KafkaProgramError(f"the broker ended with {code}:\n{self.output_tail()}")

    def kill(self) -> None:
        """End the broker at once, as a lost machine would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def output_tail(self) -> str:
        """The errors that the broker logged, and the last 4000 characters of all that it wrote."""
        if not self._output.exists():
            return ""
        output = self._output.read_text(errors="replace")
        errors = re.findall(r"^\[[^\n]*\] ERROR .*\n.*$", output, re.MULTILINE)
        return "\n".join([*errors[-5:], "...", output[-4000:]])

    @property
    def _output(self) -> Path:
        return self._directory / "output.log"

    def _serves(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self._address, "log_level": 0})
        try:
            return bool(admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False
