"""Jars from a Maven repository, fetched once and checked each time.

PySpark brings Ivy, and Ivy reads Maven repositories: no Maven is needed. `{name}_ivy.xml` names what is wanted,
`{name}_jars.sha256` what must arrive: one line a jar, as sha256sum prints it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import ssl
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from cryptography.utils import CryptographyDeprecationWarning

from tiered_storage.errors import TieredStorageError
from tiered_storage_airflow.embedded.java import java_home

DOWNLOAD_SECONDS = 300
TRUST_STORE_PASSWORD = "certificates are no secret"  # noqa: S105

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


class MavenJarsError(TieredStorageError):
    """The jars cannot be downloaded, or differ from those that are listed."""


@dataclass(frozen=True, slots=True)
class MavenJars:
    """The jars of one product, such as `kafka`, in one version; `folder` has the two files that list them."""

    name: str
    version: str
    folder: Path

    @property
    def ivy(self) -> Path:
        """The ivy file that names the jars."""
        return self.folder / f"{self.name}_ivy.xml"

    @property
    def list(self) -> Path:
        """The file with the checksums of all jars."""
        return self.folder / f"{self.name}_jars.sha256"


def fetched_jars(wanted: MavenJars, state: Path) -> list[Path]:
    """Return the class path of `wanted` below `state`, downloading it first where it is not whole.

    A download fills a directory of its own and takes its place only when every jar is as listed, so an interrupted one
    leaves nothing that counts. Two processes at once: one downloads, the other waits for it.
    The environment's DEFAULT_ARTIFACT_REPOSITORY names another repository than Maven Central, as it does for Spark.

    Raises MavenJarsError where the repository cannot be reached, or what it gave is not what is listed.
    """
    home = state / f"{wanted.name}-jars"
    jars = home / wanted.version
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home / f"{wanted.version}.lock"):
        if _differences(wanted, jars):
            _discard_interrupted_downloads(home)
            _download(wanted, state, jars)
    return sorted(jars.glob("*.jar"))


def _download(wanted: MavenJars, state: Path, jars: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="download-", dir=jars.parent) as name:
        work = Path(name)
        _run_ivy(wanted, state, work)
        if differences := _differences(wanted, work / "jars"):
            raise MavenJarsError(f"the jars of {wanted.name} differ from {wanted.list}: {', '.join(differences)}")
        if jars.exists():
            shutil.rmtree(jars)
        (work / "jars").rename(jars)


def _discard_interrupted_downloads(home: Path) -> None:
    for path in home.glob("download-*"):
        shutil.rmtree(path)


def _run_ivy(wanted: MavenJars, state: Path, work: Path) -> None:
    """Let Ivy resolve `wanted` into `work`/jars; its caches stay in `work` too, whatever the user's home holds."""
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
        *("-ivy", str(wanted.ivy)),
        *("-retrieve", f"{work}/jars/[artifact]-[revision].[ext]"),
    ]
    asked = repository or "Maven Central"
    try:
        run = subprocess.run(  # noqa: S603 - the project's own Java
            command, cwd=work, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MavenJarsError(
            f"the jars of {wanted.name} did not come from {asked} in {DOWNLOAD_SECONDS} s: try again"
        ) from error
    if run.returncode:
        raise MavenJarsError(
            f"the jars of {wanted.name} could not be downloaded from {asked}: it is needed once, or another Maven "
            f"repository named by DEFAULT_ARTIFACT_REPOSITORY. Ivy said:\n{_reasons(run.stdout + run.stderr)}"
        )


def _reasons(output: str) -> str:
    """Return the lines of Ivy's output that tell why the repository failed; without any, its whole summary."""
    problems = (output.partition(":: problems summary ::")[2] or output).splitlines()
    of_network = [line for line in problems if line.strip().startswith(("Host ", "Server access error"))]
    return "\n".join(of_network[:3] or problems)[:2000]


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MavenJarsError("pyspark is not installed, and its Ivy fetches jars: make setup installs it")
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise MavenJarsError(f"no jar of Ivy is beside {spec.origin}: reinstall pyspark")
    return found[-1]


def trust_options(store: Path) -> list[str]:
    """Make Java trust the certificates that Python trusts: Java's own list misses a company's, or a proxy's."""
    trusted = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not trusted:
        return []
    with warnings.catch_warnings():
        # Some old roots have the serial number 0, and are valid all the same.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        certificates = [
            pkcs12.PKCS12Certificate(x509.load_der_x509_certificate(der), str(number).encode())
            for number, der in enumerate(trusted)
        ]
    password = TRUST_STORE_PASSWORD
    store.write_bytes(pkcs12.serialize_java_truststore(certificates, BestAvailableEncryption(password.encode())))
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={password}"]


def _differences(wanted: MavenJars, jars: Path) -> list[str]:
    """Name each jar that is missing from `jars`, does not belong there, or has other bytes than listed."""
    listed = {name: digest for digest, name in (line.split() for line in wanted.list.read_text().splitlines())}
    present = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in jars.glob("*.jar")}
    return sorted(name for name in listed.keys() | present.keys() if listed.get(name) != present.get(name))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
