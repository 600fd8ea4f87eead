"""The remote log as one run of a DAG sees it, and what the arguments of its operators mean."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException

from tiered_storage_airflow.hooks.remote_log import RemoteLogHook

if TYPE_CHECKING:
    from tiered_storage.remote_log.remote_log_manager import RemoteLogManager
    from tiered_storage.remote_log.selection import Selection

Overrides = Mapping[str, object] | str | None
"""Properties by name that go over all others, or their JSON, as a form gives them."""

NOT_BY_A_FORM = (
    "remote.log.storage.manager.class.name",
    "remote.log.unreferenced.max.percent",
    "remote.log.verify.before.trim",
)
"""Properties that a form may not set: whoever may start a run may not load code by it, nor switch off what is safe."""


@contextmanager
def opened_remote_log(settings: Overrides, remote_storage_conn_id: str) -> Iterator[RemoteLogManager]:
    """Open the remote log for a `with`, with `settings` over all others.

    What goes wrong in the block and no retry can mend fails the task for good; the rest passes through and is retried.
    """
    from tiered_storage.errors import TieredStorageError  # noqa: PLC0415 - a DAG file is parsed every few seconds

    try:
        with RemoteLogHook(remote_storage_conn_id, overrides=_properties(settings)).get_conn() as remote_log:
            yield remote_log
    except TieredStorageError as error:
        if error.retriable:
            raise
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error


def selected(remote_log: RemoteLogManager, topics: str, partitions: str | None, must_match: bool | str) -> Selection:
    """Return what is meant. Raises ConfigurationError where it cannot be, or matches nothing and should."""
    from tiered_storage.errors import ConfigurationError  # noqa: PLC0415 - as above
    from tiered_storage.remote_log.selection import Selection, parse_partitions  # noqa: PLC0415

    selection = Selection(topics, parse_partitions(partitions or None))
    if is_switched_on(must_match, "must_match") and (nothing := remote_log.checks.why_nothing_matches(selection)):
        asked = f"topics {topics!r}" + (f", partitions {partitions}" if partitions else "")
        raise ConfigurationError(f"{asked}: {nothing}")
    return selection


def is_switched_on(value: object, name: str) -> bool:
    """Return what a switch says, also as the text that a template makes of it.

    Raises AirflowFailException for anything that is neither true nor false: a dry run must never be one by mistake.
    """
    text = str(value).strip().lower()
    if text not in {"true", "false"}:
        raise AirflowFailException(f"{name} is {value!r}, and can only be true or false")
    return text == "true"


def whole_number(value: object, name: str) -> int | None:
    """Return a number of one or more, also as text; None where nothing is given. Raises AirflowFailException."""
    text = "" if value is None else str(value).strip()
    if not text or text == "None":
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise AirflowFailException(f"{name} is {value!r}, and can only be a number of 1 or more")
    return int(text)


def _properties(settings: Overrides) -> Mapping[str, object] | None:
    if not isinstance(settings, str):
        return settings
    if not settings.strip():
        return None
    try:
        properties = json.loads(settings)
    except ValueError as error:
        raise AirflowFailException(f"settings are no JSON: {error}: {settings!r}") from error
    if properties is not None and not isinstance(properties, dict):
        raise AirflowFailException(f"settings are no properties by name: {settings!r}")
    if refused := [name for name in NOT_BY_A_FORM if name in (properties or {})]:
        raise AirflowFailException(
            f"settings: {', '.join(refused)} cannot be set for one run: leave it out, the settings file decides it"
        )
    return properties
