"""Check the settings: what is set, and where."""

from __future__ import annotations

from collections.abc import Iterator

from tiered_storage.doctor.check import Check, note, ok
from tiered_storage.settings.properties.types import hide_secrets
from tiered_storage.settings.settings import Settings


def check_settings(settings: Settings) -> Iterator[Check]:
    """Yield the settings file, every value that is set with its origin, and the settings' notices."""
    if settings.config_path is None:
        yield note(
            "settings",
            "no settings file was read: everything that the environment does not set has its default",
            "write include/tiered_storage.yaml, or name a file by --config or TIERED_STORAGE_CONFIG",
        )
    else:
        yield ok("settings", f"read from {settings.config_path}")
    for notice in settings.notices:
        yield note("settings", notice)
    for path, where in settings.origins.items():
        if len(path) == 1:
            yield ok("settings", f"{path[0]} is {_shown(settings, path[0])} ({where})")
    for prefix, values in (("rsm.config.", settings.rsm_config), ("rlmm.config.", settings.rlmm_config)):
        if values:
            yield ok("settings", f"your own class gets the options {', '.join(sorted(values))} ({prefix})")
    if settings.scheduled_deletion_enable:
        yield ok("settings", "scheduled deletion is on: runs that a schedule or an asset event starts delete")
    else:
        yield ok(
            "settings",
            "scheduled deletion is off: runs that a schedule or an asset event starts only plan, until "
            "scheduled.deletion.enable is true",
        )
    if settings.topics:
        yield ok("settings", f"topics with initial properties: {', '.join(sorted(settings.topics))}")


def _shown(settings: Settings, name: str) -> str:
    value = getattr(settings, name.replace(".", "_"))
    if isinstance(value, bool):
        return str(value).lower()
    return hide_secrets(", ".join(map(str, value)) if isinstance(value, tuple) else str(value))
