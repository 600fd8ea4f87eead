"""The fields of the DAGs' forms, which Airflow checks before a run begins, and the templates that pass them on.

A field has the name of the operator's argument. Operators never read a form themselves: in your own DAG they take plain
arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException
from jsonschema import FormatChecker

from tiered_storage_airflow.clusters import SEPARATOR
from tiered_storage_airflow.forms.allowed_settings import BY_A_FORM

TOPICS_VARIABLE = "remote_log_topics"

# An empty Variable means all topics; as a regular expression it would match none.


def of_cluster(variable: str) -> str:
    """Return the expression, for a template, that names the Airflow Variable of the cluster which the task serves."""
    return f"'{variable}' ~ ('{SEPARATOR}' ~ task.cluster if task.cluster else '')"


TOPICS = f"{{{{ params.topics or var.value.get({of_cluster(TOPICS_VARIABLE)}, '.*') or '.*' }}}}"
"""A template for the argument `topics` of operators: a regular expression over whole topic names.

An empty field means the Variable remote_log_topics; for another cluster, remote_log_topics__west."""


PARTITIONS = "{{ params.partitions or '' }}"
DRY_RUN = "{{ params.dry_run }}"
MAX_SEGMENTS = "{{ params.max_segments or '' }}"
SETTINGS = "{{ params.settings | tojson }}"
MUST_MATCH = "{{ 'true' if params.topics or params.partitions else 'false' }}"
"""True if the form selects topics or partitions: then no match is an error. A scheduled run waits for topics."""

LARGEST_NUMBER = 2**63 - 1
"""The largest offset, count or size."""
OFFSET_PATTERN = r"^$|^[0-9]{1,19}$"
TIME_PATTERN = (
    r"^$|^[0-9]{1,16}$"
    r"|^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}(:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?$"
)
TOPICS_FORMAT = "regular expression in RE2's syntax"
"""The name of the format, which Airflow shows in an error."""
CONNECTION_PATTERN = r"^$|^[A-Za-z0-9._-]{1,250}$"
TOPIC_OR_NOTHING_PATTERN = r"^$|^[A-Za-z0-9._-]{1,249}$"
_PARTITIONS_PATTERN = r"^$|^\d{1,10}(-\d{1,10})?( *, *\d{1,10}(-\d{1,10})?)*$"
_TOPIC_PATTERN = r"^[A-Za-z0-9._-]{1,249}$"


def _is_valid(topics: object) -> bool:
    """Return whether a value of the field Topics is empty or a valid regular expression."""
    if not isinstance(topics, str) or not topics:
        return True
    from tiered_storage.errors import ConfigurationError  # noqa: PLC0415 - a DAG file is parsed every few seconds
    from tiered_storage.remote_log.selection import Selection  # noqa: PLC0415 - as above

    with suppress(ConfigurationError):
        Selection(topics)
        return True
    return False


# JSON Schema's own format `regex` uses Python's compiler; some of its errors make Airflow respond with status 500.
# Airflow checks a field with a FormatChecker() that it makes itself: it finds only formats of the class.
FormatChecker.checkers[TOPICS_FORMAT] = (_is_valid, ())


def common_params() -> dict[str, Param]:
    """Return the fields that every DAG over partitions has."""
    return {"topics": topics_param(), "partitions": partitions_param(), "settings": settings_param()}


def topics_param() -> Param:
    """Return the field Topics: a regular expression, or empty."""
    return Param(
        None,
        type=["null", "string"],
        maxLength=10_000,
        format=TOPICS_FORMAT,
        title="Topics",
        description=(
            f"A regular expression (RE2) over topic names; empty: the Airflow Variable {TOPICS_VARIABLE}, or all."
        ),
    )


def partitions_param() -> Param:
    """Return the field Partitions: numbers and ranges, or empty."""
    return Param(
        None,
        type=["null", "string"],
        pattern=_PARTITIONS_PATTERN,
        title="Partitions",
        description="Partition numbers, such as 0,2-4; empty: all.",
    )


def dry_run_param(title: str, *, default: bool = False) -> Param:
    """Return the switch for a dry run, which only shows its plan."""
    return Param(default, type="boolean", title=title)


def max_segments_param(empty: str = "all that are due") -> Param:
    """Return the field for the most segments of a run; `empty` describes what an empty field means."""
    return Param(
        None,
        type=["null", "integer"],
        minimum=1,
        maximum=LARGEST_NUMBER,
        title="Maximum number of segments",
        description=f"Empty: {empty}. The next runs take the rest.",
    )


def settings_param() -> Param:
    """Return the field Settings: limits and sizes that override all others for one run."""
    names = ", ".join(sorted(BY_A_FORM))
    return Param({}, type="object", title="Settings", description=f"Properties for this run only; allowed are {names}.")


def topic_param() -> Param:
    """Return the required field for the name of one topic."""
    return Param("", type="string", pattern=_TOPIC_PATTERN, title="Topic", description="The name of one topic.")


def reason_param(title: str, description: str) -> Param:
    """Return an optional field for text."""
    return Param(None, type=["null", "string"], maxLength=1000, title=title, description=description)


def word_param(name: str, description: str, pattern: str = "") -> Param:
    """Return an optional field for one word, number, path or address, which must match `pattern` if that is given."""
    return Param(
        None,
        # A program that starts the run may send a whole number as a number.
        type=["null", "string", "integer"] if pattern == OFFSET_PATTERN else ["null", "string"],
        maxLength=4096,
        minimum=0,
        maximum=LARGEST_NUMBER,
        pattern=pattern,
        title=name.replace("_", " ").capitalize(),
        description=description,
    )


def refuse_unknown_fields(context: Mapping[str, Any]) -> None:
    """Raise AirflowFailException if the run has a field that the DAG's form does not have.

    Airflow would ignore a mistyped `dry_run` in silence, and the run would do what it should only show. A DAG without a
    form takes any `conf`.
    """
    if unknown := _unknown_fields(context):
        raise AirflowFailException(f"nothing was done: {unknown}")


def warn_of_unknown_fields(context: Mapping[str, Any]) -> None:
    """Warn in the task's log of fields that the DAG's form does not have: for a DAG that must not fail for them."""
    if unknown := _unknown_fields(context):
        context["task"].log.warning("ignored: %s", unknown)


def _unknown_fields(context: Mapping[str, Any]) -> str | None:
    known = list(context["dag"].params)
    unknown = sorted(set(context["dag_run"].conf or {}) - set(known))
    if not known or not unknown:
        return None
    near = [f"; for {each}, did you mean {found[0]}?" for each in unknown if (found := get_close_matches(each, known))]
    return f"the form has no field {', '.join(unknown)}{''.join(near)}; it has {', '.join(known)}"
