"""The remote log as one run of a DAG sees it, and what the arguments of its operators mean."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from tiered_storage_airflow.form_settings import refuse_a_lifted_throttle, refuse_what_no_form_sets
from tiered_storage_airflow.hooks.remote_log import RemoteLogHook
from tiered_storage_airflow.run_time import was_taken_over

if TYPE_CHECKING:
    from tiered_storage.remote_log.manager import RemoteLogManager
    from tiered_storage.remote_log.selection import Selection


Overrides = Mapping[str, object] | str | None
"""Properties by name that go over all others; as text they are JSON that a form gives, with what a form may set."""


@contextmanager
def opened_remote_log(
    settings: Overrides, remote_storage_conn_id: str, *, is_form: bool = False, outdated: bool = False
) -> Iterator[RemoteLogManager]:
    """Open the remote log for a `with`, with `settings` over all others.

    What is text, or `is_form`, sets only what a form may; see form_settings.py. `outdated` as RemoteLogContext.open.
    What goes wrong in the block and no retry can repair fails the task for good; the rest passes through and is
    retried.
    """
    from tiered_storage.errors import TieredStorageError  # noqa: PLC0415 - a DAG file is parsed every few seconds

    try:
        properties = _properties(settings, is_form=is_form)
        hook = RemoteLogHook(remote_storage_conn_id, overrides=properties)
        with hook.get_conn(create=True, outdated=outdated) as remote_log:
            yield remote_log
    except TieredStorageError as error:
        if error.retriable:
            raise
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error


def selected(remote_log: RemoteLogManager, topics: str, partitions: str | None, must_match: bool | str) -> Selection:
    """Return what is meant. Raises ConfigurationError if it cannot be, or matches nothing and should."""
    from tiered_storage.errors import ConfigurationError  # noqa: PLC0415 - as above
    from tiered_storage.remote_log.selection import Selection, parse_partitions  # noqa: PLC0415

    selection = Selection(topics, parse_partitions(partitions or None))
    if is_switched_on(must_match, "must_match") and (nothing := remote_log.why_nothing_matches(selection)):
        asked = f"topics {topics!r}" + (f", partitions {partitions}" if partitions else "")
        raise ConfigurationError(f"{asked}: {nothing}")
    return selection


def ensure_may_read(remote_log: RemoteLogManager, context: Mapping[str, Any], topic: str) -> None:
    """Raise AirflowFailException unless the user who triggered the run may read the records of `topic`.

    The rights are those of read.service.rights.file that name the user: a task does not learn anybody's roles. Without
    such a file no user may read. A run that nobody triggered, as a scheduled one, acts for the owner of the DAG.
    Airflow lets a backfill take a run over with a form of its own, and keeps the name of who triggered it before: such
    a run is refused if its form names the topic.
    """
    from tiered_storage.settings.read_rights import NO_RIGHTS, Right, load_read_rights  # noqa: PLC0415 - as above

    dag_run = context["dag_run"]
    if topic in (getattr(dag_run, "conf", None) or {}).values() and was_taken_over(context):
        raise AirflowFailException(
            f"nothing was done: a backfill has taken the run {dag_run.run_id} over, and Airflow does not tell who "
            f"named topic {topic!r} in its form: trigger a new run"
        )
    user = getattr(dag_run, "triggering_user_name", None)
    if user is None:
        return
    file = remote_log.settings.read_service_rights_file
    rights = load_read_rights(file) if file else NO_RIGHTS
    if rights.allows(user, (), Right.READ, topic):
        return
    where = f"in {file}" if file else "in a file that the setting read.service.rights.file names"
    raise AirflowFailException(
        f"nothing was done: {user} may not read topic {topic!r}, whose records this run would hand out: an "
        f"administrator grants it {where}, by 'users: {{{user}: {{read: [{topic}]}}}}'; rights of roles do not count "
        "here, as a task does not learn the roles of a user"
    )


def is_switched_on(value: object, name: str) -> bool:
    """Return what a switch says, also as the text that a template makes of it.

    Raises AirflowFailException for anything that is neither true nor false: a dry run must never be one by mistake.
    """
    text = str(value).strip().lower()
    if text not in {"true", "false"}:
        raise AirflowFailException(f"{name} is {value!r}, and can only be true or false")
    return text == "true"


def whole_number(value: object, name: str, least: int = 1) -> int | None:
    """Return a number from `least` on, also as text; None if nothing is given. Raises AirflowFailException."""
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
    """Return a number from `least` on, also as text. Raises AirflowFailException, also if nothing is given."""
    number = whole_number(value, name, least)
    if number is None:
        raise AirflowFailException(f"{name} is empty, and can only be a whole number")
    return number


def _properties(settings: Overrides, *, is_form: bool = False) -> Mapping[str, object] | None:
    properties = _parsed(settings) if isinstance(settings, str) else settings
    if properties and (is_form or isinstance(settings, str)):
        refuse_what_no_form_sets(properties)
        refuse_a_lifted_throttle(properties)
    return properties


def _parsed(settings: str) -> Mapping[str, object] | None:
    if not settings.strip():
        return None
    try:
        properties = json.loads(settings)
    except (ValueError, RecursionError) as error:
        raise AirflowFailException(f"settings are no JSON: {error}") from error
    if properties is not None and not isinstance(properties, dict):
        raise AirflowFailException("settings are no properties by name")
    return properties
