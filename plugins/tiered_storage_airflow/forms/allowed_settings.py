"""The settings that a form may set for one run; only an administrator sets the others.

A user who may trigger a DAG may have no right to delete. So a form sets only limits, sizes and waiting times. Settings
of places, of what is copied or deleted, and of safety are the same for all runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow.sdk.exceptions import AirflowFailException

BY_A_FORM = frozenset(
    {
        "audit.worker.bytes.per.second",
        "commit.batch.partitions",
        "copy.max.segments.per.run",
        "copy.stuck.after.ms",
        "copy.window.bytes",
        "index.interval.bytes",
        "metadata.busy.timeout.ms",
        "remote.log.index.chunk.bytes",
    }
)
"""All settings that a form may set; a new setting is refused until it is added here."""

THROTTLE = "audit.worker.bytes.per.second"
"""The only one of them that protects others, so a form may only lower it."""

_TOPICS = "topics"
_OF_A_CLASS = ("class.name", "impl.prefix")


def refuse_settings_not_for_forms(properties: Mapping[str, object], cluster: str | None = None) -> None:
    """Raise AirflowFailException if a form may not set one of `properties`; it names them and where to set them.

    Does not check for unknown names: reading the settings does, and suggests the nearest name. Shows no values.
    """
    from tiered_storage.settings.settings import Settings  # noqa: PLC0415 - a DAG file is parsed every few seconds

    known = Settings.known_names()
    options = [name for name in properties if name not in known and name.startswith(_option_prefixes(cluster))]
    refused = [*(name for name in known if name in properties and name not in BY_A_FORM), *options]
    if not refused:
        return
    raise AirflowFailException(
        f"settings: {_listed(refused)} cannot be set by a form: {_where(refused)}. For one run a form may set "
        f"{_listed(sorted(BY_A_FORM))}"
    )


def _option_prefixes(cluster: str | None) -> tuple[str, ...]:
    """Return the prefixes of the options that a class of the user's own gets; none if `cluster` uses only our
    classes."""
    from tiered_storage.settings.own_managers import METADATA_MANAGER, STORAGE_MANAGER  # noqa: PLC0415 - as above
    from tiered_storage.settings.settings import load_cluster_settings  # noqa: PLC0415 - as above

    names = [f"{manager.name}.{part}" for manager in (STORAGE_MANAGER, METADATA_MANAGER) for part in _OF_A_CLASS]
    given = load_cluster_settings(cluster, only=frozenset(names))
    storage = (given.remote_log_storage_manager_impl_prefix,) if given.has_own_storage_manager else ()
    metadata = (given.remote_log_metadata_manager_impl_prefix,) if given.has_own_metadata_manager else ()
    return storage + metadata


def refuse_a_lifted_throttle(properties: Mapping[str, object], cluster: str | None = None) -> None:
    """Raise AirflowFailException if `properties` of a form raise THROTTLE above its value in the settings.

    Raises ConfigurationError for a value that the setting cannot have.
    """
    if THROTTLE not in properties:
        return
    from tiered_storage.settings.properties.types import UNLIMITED  # noqa: PLC0415 - as above
    from tiered_storage.settings.settings import load_cluster_settings  # noqa: PLC0415 - as above

    given = {THROTTLE: properties[THROTTLE]}
    asked = load_cluster_settings(cluster, overrides=given, only={THROTTLE}).audit_worker_bytes_per_second
    held = load_cluster_settings(cluster, only={THROTTLE}).audit_worker_bytes_per_second
    if held == UNLIMITED or UNLIMITED < asked <= held:
        return
    raise AirflowFailException(
        f"settings: {THROTTLE} is {asked}, and a form may only lower it: set at most {held}, or {_where([THROTTLE])}"
    )


def _where(names: Iterable[str]) -> str:
    """Return where to set `names` instead."""
    from tiered_storage.settings.properties.sources import environment_variable  # noqa: PLC0415 - as above
    from tiered_storage.settings.settings import Settings  # noqa: PLC0415 - as above

    known = Settings.known_names()
    variables = [environment_variable(name) for name in names if name in known and name[-1] != "." and name != _TOPICS]
    environment = f", or as {_listed(variables)} in Airflow's environment" if variables else ""
    topics = "" if _TOPICS not in names else "; set topics by 'tiered-storage topics'"
    return f"set it for all runs in the settings file (TIERED_STORAGE_CONFIG){environment}{topics}"


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
