"""Kafka's own programs, run by the project's Java from Kafka's jars, which are fetched once and checked each time.

Kafka is not in the Python registry, but PySpark brings Ivy, and Ivy reads Maven repositories: no Maven is needed.
`kafka_ivy.xml` says what is asked for, `kafka_jars.sha256` what must come: one line a jar, as sha256sum prints it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import ssl
import subprocess
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self
from xml.sax.saxutils import quoteattr

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from cryptography.utils import CryptographyDeprecationWarning

from tiered_storage_airflow.embedded.java import java_home

KAFKA_VERSION = "4.3.1"
DOWNLOAD_SECONDS = 300
TRUST_STORE_PASSWORD = "certificates are no secret"

_HERE = Path(__file__).parent
_LIST = _HERE / "kafka_jars.sha256"

# One repository and nothing else: neither the user's Maven nor the user's Ivy cache takes part. The jars are checked by
# SHA-256 here, so Ivy need not fetch a checksum file for each of them.
_SETTINGS = """\
<ivysettings>
  <property name="ivy.maven.lookup.sources" value="false"/>
  <property name="ivy.maven.lookup.javadoc" value="false"/>
  <settings defaultResolver="repository"/>
  <caches defaultCacheDir={cache}/>
  <resolvers>
    <ibiblio name="repository" m2compatible="true" {root} useMavenMetadata="false" checksums=""/>
  </resolvers>
</ivysettings>
"""


class KafkaJarsError(RuntimeError):
    """The jars of Kafka cannot be had, or are not those of kafka_jars.sha256."""


def kafka_jars(state: Path) -> list[Path]:
    """Return the class path of Kafka 4.3.1 under `state`/kafka-jars, downloading it first where it is not whole.

    A download fills a directory of its own and takes its place only when every jar is as listed, so an interrupted one
    leaves nothing behind that counts. Two processes at once: one downloads, the other waits for it.
    The environment's DEFAULT_ARTIFACT_REPOSITORY names another repository than Maven Central, as it does for Spark.

    Raises KafkaJarsError where the repository cannot be reached, or what it gave is not what is listed.
    """
    home = state / "kafka-jars"
    jars = home / KAFKA_VERSION
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home / f"{KAFKA_VERSION}.lock"):
        if _differences(jars):
            _discard_interrupted_downloads(home)
            _download(state, jars)
    return sorted(jars.glob("*.jar"))


def _download(state: Path, jars: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="download-", dir=jars.parent) as name:
        work = Path(name)
        _run_ivy(state, work)
        if differences := _differences(work / "jars"):
            raise KafkaJarsError(f"the jars of Kafka differ from {_LIST}: {', '.join(differences)}")
        if jars.exists():
            shutil.rmtree(jars)
        (work / "jars").rename(jars)


def _discard_interrupted_downloads(home: Path) -> None:
    for path in home.glob("download-*"):
        shutil.rmtree(path)


def _run_ivy(state: Path, work: Path) -> None:
    """Let Ivy resolve kafka_ivy.xml into `work`/jars; its caches stay in `work` too, whatever the user's home holds."""
    repository = os.environ.get("DEFAULT_ARTIFACT_REPOSITORY")
    root = f"root={quoteattr(repository.rstrip('/') + '/')}" if repository else ""
    settings = work / "ivysettings.xml"
    settings.write_text(_SETTINGS.format(cache=quoteattr(str(work / "cache")), root=root))
    command = [
        str(java_home(state, os.environ) / "bin" / "java"),
        "-Xmx256m",
        f"-Duser.home={work}",
        *trust_options(work / "trusted.p12"),
        *("-jar", str(_ivy_jar())),
        *("-settings", str(settings)),
        *("-ivy", str(_HERE / "kafka_ivy.xml")),
        *("-retrieve", f"{work}/jars/[artifact]-[revision].[ext]"),
    ]
    asked = repository or "Maven Central"
    try:
        run = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise KafkaJarsError(f"Kafka's jars did not come from {asked} in {DOWNLOAD_SECONDS} s: try again") from error
    if run.returncode:
        raise KafkaJarsError(
            f"Kafka's jars could not be had from {asked}: the integration tests need it once, or another Maven "
            f"repository named by DEFAULT_ARTIFACT_REPOSITORY. Ivy said:\n{_reasons(run.stdout + run.stderr)}"
        )


def _reasons(output: str) -> str:
    """Pick out of Ivy's output what kept it from the repository; where nothing did, its whole summary."""
    problems = (output.partition(":: problems summary ::")[2] or output).splitlines()
    of_network = [line for line in problems if line.strip().startswith(("Host ", "Server access error"))]
    return "\n".join(of_network[:3] or problems)[:2000]


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise KafkaJarsError("pyspark is not installed, and its Ivy fetches Kafka's jars: make setup installs it")
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise KafkaJarsError(f"no jar of Ivy is beside {spec.origin}: install pyspark anew")
    return found[-1]


def trust_options(store: Path) -> list[str]:
    """Make Java trust the certificates that Python trusts: Java's own list misses a company's, or a proxy's."""
    trusted = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not trusted:
        return []
    with warnings.catch_warnings():
        # Some old roots have a serial number of 0, and are none the worse for it.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        certificates = [
            pkcs12.PKCS12Certificate(x509.load_der_x509_certificate(der), str(number).encode())
            for number, der in enumerate(trusted)
        ]
    password = TRUST_STORE_PASSWORD
    store.write_bytes(pkcs12.serialize_java_truststore(certificates, BestAvailableEncryption(password.encode())))
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={password}"]


def _differences(jars: Path) -> list[str]:
    """Name each jar that is missing from `jars`, does not belong there, or has other bytes than listed."""
    listed = {name: digest for digest, name in (line.split() for line in _LIST.read_text().splitlines())}
    present = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in jars.glob("*.jar")}
    return sorted(name for name in listed.keys() | present.keys() if listed.get(name) != present.get(name))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
        return cls(java_home(state, os.environ) / "bin" / "java", tuple(kafka_jars(state)))

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
