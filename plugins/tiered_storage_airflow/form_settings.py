"""Which settings a form may set for one run, and which only those who run the machine.

Whoever may trigger a DAG may be nobody who may delete: a form sets limits, sizes and waiting times. What says where
data lives, what is copied or goes, and how safe that is holds for all runs.
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
"""All that a form may set; a setting that is new is none of it until somebody puts it here."""

THROTTLE = "audit.worker.bytes.per.second"
"""Of what a form may set, the one that protects others: a form may only lower it."""

_TOPICS = "topics"


def refuse_what_no_form_sets(properties: Mapping[str, object]) -> None:
    """Raise AirflowFailException, which names each of `properties` that a form may not set and where to set it.

    Names that do not exist are left to whoever reads the settings: they know the nearest one. Values are not shown.
    """
    from tiered_storage.settings.settings import Settings  # noqa: PLC0415 - a DAG file is parsed every few seconds

    held = [name for name in Settings.known_names() if name in properties and name not in BY_A_FORM]
    if not held:
        return
    raise AirflowFailException(
        f"settings: {_listed(held)} cannot be set by a form: {_where(held)}. For one run a form may set "
        f"{_listed(sorted(BY_A_FORM))}"
    )


def refuse_a_lifted_throttle(properties: Mapping[str, object]) -> None:
    """Raise AirflowFailException if `properties` of a form allow more than THROTTLE of the settings does.

    Raises ConfigurationError for a value that the setting cannot have.
    """
    if THROTTLE not in properties:
        return
    from tiered_storage.settings.properties.types import UNLIMITED  # noqa: PLC0415 - as above
    from tiered_storage.settings.settings import load_settings  # noqa: PLC0415 - as above

    asked = load_settings(overrides={THROTTLE: properties[THROTTLE]}, only={THROTTLE}).audit_worker_bytes_per_second
    held = load_settings(only={THROTTLE}).audit_worker_bytes_per_second
    if held == UNLIMITED or UNLIMITED < asked <= held:
        return
    raise AirflowFailException(
        f"settings: {THROTTLE} is {asked}, and a form may only lower it: set at most {held}, or {_where([THROTTLE])}"
    )


def _where(names: Iterable[str]) -> str:
    """Return where to set `names` instead."""
    from tiered_storage.settings.properties.sources import environment_variable  # noqa: PLC0415 - as above

    variables = [environment_variable(name) for name in names if name != _TOPICS]
    environment = f", or as {_listed(variables)} in Airflow's environment" if variables else ""
    topics = "" if _TOPICS not in names else "; of a topic by 'tiered-storage topics'"
    return f"set it for all runs in the settings file (TIERED_STORAGE_CONFIG){environment}{topics}"


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
