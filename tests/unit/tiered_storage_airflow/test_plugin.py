"""The plugin, which every process of Airflow loads, those of tasks too."""

from __future__ import annotations

import subprocess
import sys

AS_A_TASK = """
import sys
import airflow.sdk.execution_time.task_runner
from airflow.sdk._shared.plugins_manager.plugins_manager import is_valid_plugin
known = set(sys.modules)
from tiered_storage_airflow.plugin import TieredStoragePlugin
assert is_valid_plugin(TieredStoragePlugin)
plugin = TieredStoragePlugin()
plugin.on_load()
assert plugin.operator_extra_links and plugin.external_views
print(*(set(sys.modules) - known))
"""


def test_a_task_that_loads_the_plugin_loads_nothing_of_the_api_server() -> None:
    loaded = subprocess.run([sys.executable, "-c", AS_A_TASK], capture_output=True, text=True, check=True).stdout
    modules = loaded.splitlines()[-1].split()
    assert "tiered_storage_airflow.plugin" in modules
    assert not [name for name in modules if name.startswith(("airflow.api_fastapi", "fastapi", "starlette"))]


def test_the_api_server_gets_one_application() -> None:
    from fastapi import FastAPI

    from tiered_storage_airflow.plugin import TieredStoragePlugin

    [first], [second] = TieredStoragePlugin().fastapi_apps, TieredStoragePlugin().fastapi_apps
    assert isinstance(first["app"], FastAPI)
    assert first["app"] is second["app"]
    assert first["url_prefix"] == "/remote-log"
