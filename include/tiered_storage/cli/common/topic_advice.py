"""`tiered-storage topics advise`: what tiering would copy, keep, save and cost, before anything is enabled."""

from __future__ import annotations

from typing import Annotated

import typer

from tiered_storage.cli.common.output import Output
from tiered_storage.cli.common.session import ConfigOption, JsonOption, opened
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.enabling.advice import (
    ASSUMPTIONS,
    MonthlyCosts,
    TopicAdvice,
    advise,
    total,
    unpriced,
)
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.source.partition_log import name_of
from tiered_storage.settings.settings import Settings

PatternArgument = Annotated[
    str, typer.Argument(metavar="TOPICS", help="A regular expression (RE2) that whole topic names match.")
]

_COLUMNS = (
    "topic", "partitions", "local bytes", "daily bytes", "due bytes", "stored bytes", "kept locally bytes",
    "saved bytes", "store a month", "writes a month", "reads a month", "transfer a month", "disks saved a month",
    "problem",
)  # fmt: skip


def advise_on_topics(topics: PatternArgument = ".*", config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Estimate what tiering the topics would copy, keep on the brokers, save there, and cost a month. Changes nothing.

    Prices are settings (cost.*); what has no price is not counted. The assumptions are printed below the table.
    """
    output = Output(as_json)
    selection = Selection(topics)
    with opened(config, output, only_looks=True) as remote_log:
        found, estimated = advise(remote_log.context, selection.matches)
        settings = remote_log.context.settings
        if not found:
            near = selection.near_hint({name_of(each)[0] for each in remote_log.context.source.names()})
            hint = near or "'tiered-storage topics list' shows the known topics"
            raise ConfigurationError(f"no local topic matches {topics}; {hint}")
    summed = total(found)
    missing = unpriced(settings)
    keys = [column.replace(" ", "_") for column in _COLUMNS]
    rows = [_row(each, settings) for each in found]
    if output.as_json:
        output.rows(
            "Advice", _COLUMNS, rows,
            sum=dict(zip(keys, _row(summed, settings), strict=True)),
            assumptions=list(ASSUMPTIONS), not_counted=missing, estimated=estimated,
        )  # fmt: skip
        return
    output.rows("If these topics were tiered", _COLUMNS, [_for_people(row) for row in (*rows, _row(summed, settings))])
    for assumption in ASSUMPTIONS:
        output.say(f"assumed: {assumption}")
    if estimated is not None:
        output.say(f"note: sizes are estimated from samples: {estimated}")
    if missing:
        output.say(f"note: not counted, since no price is set: {', '.join(missing)}")


def _row(advice: TopicAdvice, settings: Settings) -> tuple[object, ...]:
    if advice.problem is not None:
        return (advice.topic, advice.partitions, *[None] * 11, advice.problem)
    costs = MonthlyCosts.of(advice, settings)
    return (
        advice.topic, advice.partitions, advice.local, advice.daily, advice.due, advice.stored, advice.kept,
        advice.saved, costs.store, costs.writes, costs.reads, costs.transfer, costs.disks_saved, None,
    )  # fmt: skip


def _for_people(row: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(f"{value:,.2f}" if isinstance(value, float) else value for value in row)
