"""The package as others install it: a wheel with all that operators and plugin need, in no folder of the project's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

JOBS = ("audit_segments.py", "copy_segments.py", "export_parquet.py", "job_stub.py")
PROJECT = Path(__file__).resolve().parents[3]
LOOK = """
import json, sys
from pathlib import Path
from airflow import plugins_manager
from tiered_storage.remote_log.jobs.library_archive import build_library_archive
from tiered_storage_airflow.operators.audit import AUDIT_JOB
from tiered_storage_airflow.operators.remote_storage import COPY_JOB
from tiered_storage_airflow.operators.spark_groups import JOB_STUB
from tiered_storage_airflow.operators.tables import EXPORT_JOB
from tiered_storage_airflow.spark_tables import RemoteLogTables

plugins, errors = plugins_manager._get_plugins()
print(json.dumps({
    "jobs": [str(path) for path in (AUDIT_JOB, COPY_JOB, EXPORT_JOB, JOB_STUB) if path.is_file()],
    "plugins": [plugin.name for plugin in plugins if plugin.fastapi_apps],
    "errors": errors,
    "archive": build_library_archive(Path(sys.argv[1])).is_file(),
}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like an environment's site-packages: the wheel, and links to all else that is installed here."""
    folder = tmp_path_factory.mktemp("wheel")
    command: list[str | Path] = [Path(sys.executable).with_name("uv"), "build", "--wheel", "--quiet", PROJECT]
    command += ["--out-dir", folder, "--build-constraints", PROJECT / ".ci" / "build.txt"]
    # What builds it is in the cache where .venv was made here; elsewhere it comes from the index.
    if subprocess.run([*command, "--offline"], capture_output=True, check=False).returncode != 0:
        subprocess.run(command, check=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "site")
    for other in Path(sysconfig.get_path("purelib")).iterdir():
        # Not the project's own installation, which leads to its folders.
        if not other.name.startswith(("remote_log-", "_remote_log")):
            (folder / "site" / other.name).symlink_to(other)
    return folder / "site"


def look(installed: Path, home: Path, plugins: Path) -> dict[str, object]:
    """Return what a Python finds that has nothing but `installed`, in an Airflow with such a plugins folder."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(installed),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    done = subprocess.run(
        [sys.executable, "-S", "-c", LOOK, home], env=environment, cwd=home, capture_output=True, text=True, check=True
    )
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("plugins_folder", ["of somebody else", "of the project"])
def test_operators_find_their_jobs_and_airflow_the_plugin_once(
    installed: Path, tmp_path: Path, plugins_folder: str
) -> None:
    plugins = PROJECT / "plugins" if plugins_folder == "of the project" else tmp_path
    jobs = installed / "tiered_storage_airflow" / "spark_jobs"
    assert look(installed, tmp_path, plugins) == {
        "jobs": [str(jobs / name) for name in JOBS],
        "plugins": ["tiered_storage"],
        "errors": {},
        "archive": True,
    }


def test_every_file_of_the_packages_is_in_the_wheel(installed: Path) -> None:
    for source, root in (("include", "tiered_storage"), ("plugins", "tiered_storage_airflow")):
        for path in (PROJECT / source / root).rglob("*"):
            if path.is_file() and path.suffix in {".py", ".typed", ".sql", ".ini", ".mako"}:
                assert (installed / path.relative_to(PROJECT / source)).is_file(), path
    assert list((installed / "tiered_storage").rglob("test_*")) == []
