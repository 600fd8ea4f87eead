"""Registers the plugin with an Airflow that has this folder, but not the package installed, as in Astro's image.

Where it is installed its entry point does so, and Airflow would call a second plugin of the name an error.
"""

from __future__ import annotations

from importlib.metadata import entry_points

if "tiered_storage" not in entry_points(group="airflow.plugins").names:
    from tiered_storage_airflow.plugin import TieredStoragePlugin

    __all__ = ["TieredStoragePlugin"]
