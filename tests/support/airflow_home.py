"""The home of an Airflow of the tests' own, in a temporary directory.

Importing this module names the home by AIRFLOW_HOME, which has to come before Airflow is imported; everything else is
in the home's airflow.cfg, so that no other test finds it in its environment.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
CONFIGURATION = f"""\
[core]
dags_folder = {PROJECT / "dags"}
plugins_folder = {PROJECT / "plugins"}
load_examples = False
[api_auth]
jwt_secret = {secrets.token_hex(64)}
# A login ends when its token says so, and not ten seconds later.
jwt_leeway = 0
[logging]
colored_console_log = False
"""


def _name_home() -> Path:
    if "airflow" in sys.modules:
        raise RuntimeError("Airflow was imported before its home was named: import support.airflow_home first")
    home = Path(tempfile.mkdtemp(prefix="remote-log-airflow-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / "airflow.cfg").write_text(CONFIGURATION)
    os.environ["AIRFLOW_HOME"] = str(home)
    return home


HOME = _name_home()
"""AIRFLOW_HOME, removed when the process ends."""
