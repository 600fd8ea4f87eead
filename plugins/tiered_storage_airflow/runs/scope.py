"""Interpret the arguments of operators: settings, selections, switches and numbers; check a user's rights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from tiered_storage_airflow.forms.allowed_settings import refuse_a_lifted_throttle, refuse_settings_not_for_forms
from tiered_storage_airflow.runs.task_context import was_taken_over

if TYPE_CHECKING:
    from tiered_storage.remote_log.manager import RemoteLogManager
    from tiered_storage.remote_log.selection import Selection


Overrides = Mapping[str, object] | str | None
"""Properties by name that override all others. As text they are JSON from a form, limited to what a form may set."""


def overrides_of(
    settings: Overrides, cluster: str | None = None, *, is_form: bool = False
) -> Mapping[str, object] | None:
    """Return `settings` as properties by name. Raises AirflowFailException for JSON that is not an object.

    Also raises it for what a form may not set, if `settings` are text or `is_form`; see forms.allowed_settings.
    """
    properties = _parsed(settings) if isinstance(settings, str) else settings
    if properties and (is_form or isinstance(settings, str)):
        refuse_settings_not_for_forms(properties, cluster)
        refuse_a_lifted_throttle(properties, cluster)
    return properties


def selected(remote_log: RemoteLogManager, topics: str, partitions: str | None, must_match: bool | str) -> Selection:
    """Return the selection. Raises ConfigurationError if it is invalid, or if it `must_match` and matches nothing."""
    from tiered_storage.errors import ConfigurationError  # noqa: PLC0415 - a DAG file is parsed every few seconds
    from tiered_storage.remote_log.selection import Selection, parse_partitions  # noqa: PLC0415 - as above

    selection = Selection(topics, parse_partitions(partitions or None))
    if is_switched_on(must_match, "must_match") and (nothing := remote_log.context.why_nothing_matches(selection)):
        asked = f"topics {topics!r}" + (f", partitions {partitions}" if partitions else "")
        raise ConfigurationError(f"{asked}: {nothing}")
    return selection


def ensure_may_read(remote_log: RemoteLogManager, context: Mapping[str, Any], topic: str) -> None:
    """Raise AirflowFailException unless the user who triggered the run may read the records of `topic`.

    The rights are those of read.service.rights.file that name the user: a task cannot know anybody's roles. Without
    such a file no user may read. A run without a user, such as a scheduled run, acts for the owner of the DAG.
    A backfill can take over a run, with its own form, and Airflow keeps the name of the user who triggered the run
    first: such a run is refused if its form names the topic.
    """
    from tiered_storage.settings.read_rights import NO_RIGHTS, Right, load_read_rights  # noqa: PLC0415 - as above

    dag_run = context["dag_run"]
    if topic in (getattr(dag_run, "conf", None) or {}).values() and was_taken_over(context):
        raise AirflowFailException(
            f"nothing was done: a backfill has taken over the run {dag_run.run_id}, and Airflow does not record who "
            f"named topic {topic!r} in its form: trigger a new run"
        )
    user = getattr(dag_run, "triggering_user_name", None)
    if user is None:
        return
    file = remote_log.context.settings.read_service_rights_file
    rights = load_read_rights(file) if file else NO_RIGHTS
    if rights.allows(user, (), Right.READ, topic):
        return
    where = f"in {file}" if file else "in a file that the setting read.service.rights.file names"
    raise AirflowFailException(
        f"nothing was done: {user} may not read topic {topic!r}, whose records this run would give them: an "
        f"administrator grants it {where}, by 'users: {{{user}: {{read: [{topic}]}}}}'; rights of roles do not count "
        "here, because a task does not know a user's roles"
    )


def is_switched_on(value: object, name: str) -> bool:
    """Return the value of a switch, which a template may have made text.

    Raises AirflowFailException for anything but true and false: a typo must never end a dry run.
    """
    text = str(value).strip().lower()
    if text not in {"true", "false"}:
        raise AirflowFailException(f"{name} is {value!r}: it must be true or false")
    return text == "true"


def whole_number(value: object, name: str, least: int = 1) -> int | None:
    """Return a number, which may be text; None if it is empty. Raises AirflowFailException if it is below `least`."""
    from tiered_storage.errors import ConfigurationError  # noqa: PLC0415 - as above
    from tiered_storage.remote_log.selection import parse_number  # noqa: PLC0415 - as above

    text = "" if value is None else str(value).strip()
    if text in {"", "None"}:
        return None
    try:
        return parse_number(name, text, least)
    except ConfigurationError as error:
        raise AirflowFailException(str(error)) from error


def required_number(value: object, name: str, least: int = 0) -> int:
    """Return a number, which may be text. Raises AirflowFailException if it is empty or below `least`."""
    number = whole_number(value, name, least)
    if number is None:
        raise AirflowFailException(f"{name} is empty: it must be a whole number")
    return number


def _parsed(settings: str) -> Mapping[str, object] | None:
    if not settings.strip():
        return None
    try:
        properties = json.loads(settings)
    except (ValueError, RecursionError) as error:
        raise AirflowFailException(f"settings are not valid JSON: {error}") from error
    if properties is not None and not isinstance(properties, dict):
        raise AirflowFailException("settings are not a JSON object of properties by name")
    return properties
