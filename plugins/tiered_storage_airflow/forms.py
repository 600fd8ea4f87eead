"""The fields of the DAGs' forms, each checked before a run begins, and the templates by which operators take them.

A field is named as the argument that it is for. Operators read no form by themselves: in a DAG of somebody else's they
take plain arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException
from jsonschema import FormatChecker

from tiered_storage_airflow.form_settings import BY_A_FORM

TOPICS_VARIABLE = "remote_log_topics"

# Somebody who empties the Variable means no topic in particular; as an expression it would match none.
TOPICS = f"{{{{ params.topics or var.value.get('{TOPICS_VARIABLE}', '.*') or '.*' }}}}"
"""For the argument `topics` of operators: a template of a regular expression over whole topic names."""


PARTITIONS = "{{ params.partitions or '' }}"
DRY_RUN = "{{ params.dry_run }}"
MAX_SEGMENTS = "{{ params.max_segments or '' }}"
SETTINGS = "{{ params.settings | tojson }}"
MUST_MATCH = "{{ 'true' if params.topics or params.partitions else 'false' }}"
"""A person who fills in what matches nothing wants to know; a schedule goes on until there is something."""

LARGEST_NUMBER = 2**63 - 1
"""Of an offset, a count or a size."""
OFFSET_PATTERN = r"^$|^[0-9]{1,19}$"
TIME_PATTERN = (
    r"^$|^[0-9]{1,16}$"
    r"|^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}(:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?$"
)
TOPICS_FORMAT = "regular expression in RE2's syntax"
"""Airflow shows this name in an error."""
CONNECTION_PATTERN = r"^$|^[A-Za-z0-9._-]{1,250}$"
TOPIC_OR_NOTHING_PATTERN = r"^$|^[A-Za-z0-9._-]{1,249}$"
_PARTITIONS_PATTERN = r"^$|^\d{1,10}(-\d{1,10})?( *, *\d{1,10}(-\d{1,10})?)*$"
_TOPIC_PATTERN = r"^[A-Za-z0-9._-]{1,249}$"


def _is_valid(topics: object) -> bool:
    """Return whether a value of the field Topics is nothing, or a valid regular expression."""
    if not isinstance(topics, str) or not topics:
        return True
    from tiered_storage.errors import ConfigurationError  # noqa: PLC0415 - a DAG file is parsed every few seconds
    from tiered_storage.remote_log.selection import Selection  # noqa: PLC0415 - as above

    with suppress(ConfigurationError):
        Selection(topics)
        return True
    return False


# JSON Schema's own `regex` is Python's, whose compiler fails in ways that Airflow answers with status 500.
FormatChecker.checkers[TOPICS_FORMAT] = (_is_valid, ())


def common_params() -> dict[str, Param]:
    """Return the fields that every DAG over partitions has."""
    return {"topics": topics_param(), "partitions": partitions_param(), "settings": settings_param()}


def topics_param() -> Param:
    """Return the field Topics: a regular expression, or nothing."""
    return Param(
        None,
        type=["null", "string"],
        maxLength=10_000,
        format=TOPICS_FORMAT,
        title="Topics",
        description=(
            f"A regular expression (RE2) over topic names; empty: the Airflow Variable {TOPICS_VARIABLE}, or else all."
        ),
    )


def partitions_param() -> Param:
    """Return the field Partitions: numbers and ranges, or nothing."""
    return Param(
        None,
        type=["null", "string"],
        pattern=_PARTITIONS_PATTERN,
        title="Partitions",
        description="Numbers of partitions, such as 0,2-4; empty: all.",
    )


def dry_run_param(title: str, *, default: bool = False) -> Param:
    """Return the switch that lets a run only show its plan."""
    return Param(default, type="boolean", title=title)


def max_segments_param(empty: str = "all that are due") -> Param:
    """Return the field for the most segments of a run; `empty` says how many that are where it is empty."""
    return Param(
        None,
        type=["null", "integer"],
        minimum=1,
        maximum=LARGEST_NUMBER,
        title="At most so many segments",
        description=f"Empty: {empty}. The following runs take the rest.",
    )


def settings_param() -> Param:
    """Return the field Settings: limits and sizes that go over all others for one run."""
    names = ", ".join(sorted(BY_A_FORM))
    return Param({}, type="object", title="Settings", description=f"Properties for this run only, of these: {names}.")


def topic_param() -> Param:
    """Return the field for the name of one topic, which has to be filled in."""
    return Param("", type="string", pattern=_TOPIC_PATTERN, title="Topic", description="One topic, by its name.")


def reason_param(title: str, description: str) -> Param:
    """Return a field for words, which may be left empty."""
    return Param(None, type=["null", "string"], maxLength=1000, title=title, description=description)


def word_param(name: str, description: str, pattern: str = "") -> Param:
    """Return a field for one word, number, path or address, or nothing; where it matches `pattern`, if there is one."""
    return Param(
        None,
        # A whole number may come as one, where somebody starts the run by a program.
        type=["null", "string", "integer"] if pattern == OFFSET_PATTERN else ["null", "string"],
        maxLength=4096,
        minimum=0,
        maximum=LARGEST_NUMBER,
        pattern=pattern,
        title=name.replace("_", " ").capitalize(),
        description=description,
    )


def refuse_unknown_fields(context: Mapping[str, Any]) -> None:
    """Fail, before a task does anything, where the run was given a field that the DAG's form has not.

    A mistyped `dry_run` would be left out without a word, and the run would not only show.
    """
    if unknown := _unknown_fields(context):
        raise AirflowFailException(f"nothing was done: {unknown}")


def warn_of_unknown_fields(context: Mapping[str, Any]) -> None:
    """Say in the task's log where the run was given a field that the DAG's form has not: for what has to go through."""
    if unknown := _unknown_fields(context):
        context["task"].log.warning("left out: %s", unknown)


def _unknown_fields(context: Mapping[str, Any]) -> str | None:
    known = list(context["dag"].params)
    unknown = sorted(set(context["dag_run"].conf or {}) - set(known))
    if not unknown:
        return None
    near = [f"; {each} may be meant to be {found[0]}" for each in unknown if (found := get_close_matches(each, known))]
    return f"the form has no {', '.join(unknown)}{''.join(near)}; it has {', '.join(known)}"
