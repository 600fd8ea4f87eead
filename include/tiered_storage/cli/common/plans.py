"""Plans as they are shown, and saved ones: a later run executes what a dry run showed, if it is still due."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from tiered_storage.cli.common.output import Output
from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.files.small_files import replace_file
from tiered_storage.regular_files import open_regular
from tiered_storage.remote_log.copy.tasks import CopyPlan
from tiered_storage.remote_log.jobs.work_area import from_lines, to_lines
from tiered_storage.remote_log.model import Finding

Plan = TypeVar("Plan")

SavePlanOption = Annotated[
    Path | None,
    typer.Option("--save-plan", help="With --dry-run: write the plan to this file.", show_default=False),
]
PlanOption = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        help="Execute this saved plan, as far as it is still due, and touch no other partition.",
        show_default=False,
    ),
]


def check_plan_options(plan: Path | None, save: Path | None, *, dry_run: bool, chosen: bool) -> None:
    """Raise ConfigurationError if the options contradict each other."""
    if save is not None and not dry_run:
        raise ConfigurationError("--save-plan saves what --dry-run shows: give both")
    if plan is not None and (dry_run or chosen):
        raise ConfigurationError("--plan already selects what to do: leave --dry-run, --topics and --partitions out")


def ask_at_a_terminal(
    output: Output, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], question: str
) -> None:
    """Show a plan if it has `rows`, and ask the user at the terminal to confirm it; a script is not asked.

    Raises typer.Abort if the user declines.
    """
    if rows and sys.stdin.isatty():
        output.rows(title, columns, rows)
        typer.confirm(question, abort=True, err=True)


def save_plan(path: Path, plans: Sequence[Plan], kind: type[Plan]) -> None:
    """Write a header and `plans` as JSON lines: into a new file, or over an earlier plan of that kind.

    Raises ConfigurationError if the file cannot be written, or holds anything else.
    """
    if os.path.lexists(path):
        try:
            read_plan(path, kind)
        except ConfigurationError:
            raise ConfigurationError(
                f"{path}: this file exists and is not an earlier plan of the same command; it was not changed: "
                "name another file"
            ) from None
    try:
        replace_file(path, _head(kind) + to_lines(plans, kind))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot write the plan there ({error.strerror})") from error


def read_plan(path: Path, kind: type[Plan]) -> list[Plan]:
    """Read what `save_plan` wrote. Raises ConfigurationError if the file is missing, or is not such a plan."""
    try:
        with open_regular(path) as file:
            raw = file.read()
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot read the plan ({error.strerror})") from error
    if not raw:
        raise ConfigurationError(
            f"{path} is empty, which --save-plan never writes; nothing was done: make the plan again with "
            "--dry-run --save-plan"
        )
    return from_lines(raw.removeprefix(_head(kind)), kind, str(path))


def _head(kind: type[object]) -> bytes:
    """Return the first line of a saved plan, which distinguishes a plan with nothing due from an empty file.

    Earlier releases wrote no such line.
    """
    return f'{{"plan":"{kind.__name__}"}}\n'.encode()


def made_or_read(
    make: Callable[[], tuple[list[Plan], list[Finding]]],
    kind: type[Plan],
    plan_file: Path | None,
    save_plan_to: Path | None,
) -> tuple[list[Plan], list[Finding]]:
    """Return the plans in `plan_file`, or those made now, with what could not be planned; save them if requested."""
    plans, troubles = make() if plan_file is None else (read_plan(plan_file, kind), [])
    if save_plan_to is not None:
        save_plan(save_plan_to, plans, kind)
    return plans, troubles


def copy_rows(due: CopyPlan) -> list[tuple[object, ...]]:
    """Return a row a segment that a copy run would copy: partition, first and last offset, bytes, and its file.

    Segments that the copy rolls itself share a row a partition, since they have the same bounds.
    """
    rows: list[tuple[object, ...]] = [
        (str(segment.topic_id_partition), segment.base_offset, segment.end_offset, segment.size, segment.location)
        for segment in due.segments
        if segment.roll is None
    ]
    for partition, segments in due.by_partition.items():
        rolled = [segment for segment in segments if segment.roll is not None]
        if rolled:
            about = f"about {len(rolled):,} segments, rolled from {rolled[0].location}"
            size = sum(segment.size for segment in rolled)
            rows.append((str(partition), rolled[0].base_offset, rolled[0].end_offset, size, about))
    return rows
