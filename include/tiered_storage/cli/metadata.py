"""The commands on all metadata: show, verify, move and back them up, and let metadata take over a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tiered_storage.cli.common.output import Output
from tiered_storage.cli.common.session import ConfigOption, JsonOption, opened
from tiered_storage.clock import as_date, wall_clock
from tiered_storage.errors import ConfigurationError
from tiered_storage.redaction import has_password
from tiered_storage.remote_log.context import open_metadata, open_storage, store_options
from tiered_storage.remote_log.rebuild.metadata_places import metadata_status, move_segments, verified
from tiered_storage.remote_log.rebuild.metadata_rebuild import store_holder
from tiered_storage.remote_log.rebuild.take_over import back_up_metadata, move_store, restore_metadata, take_over
from tiered_storage.remote_log.retention.permission.clock_agreement import ClockAgreement
from tiered_storage.settings.settings import load_settings

app = typer.Typer(
    no_args_is_help=True,
    help="Show and verify the metadata, back them up, move them, or let metadata take over a store.",
)

TO_TOPIC, TO_DATABASE = "topic", "database"

_WARNING = (
    "From now on only these metadata can copy, trim and delete in the store; every other copy of them is refused. If "
    "they are older than the store, deletion is forbidden for every topic. Go on?"
)


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="The new file.", show_default=False)],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Back up the metadata into a new file; other processes may continue working."""
    output = Output(as_json)
    settings = load_settings(config)
    with open_metadata(settings, wall_clock) as store:
        problem = back_up_metadata(
            store, target.expanduser().absolute(), wall_clock, lambda: open_storage(settings, store_options(settings))
        )
    size = target.expanduser().stat().st_size
    output.rows("Backup of the metadata", ("file", "bytes", "is current"), [(str(target), size, problem is None)])
    if problem is not None:
        output.say(f"warning: {problem}")


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(help="What 'metadata backup' wrote.", show_default=False)],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a backup in place of the metadata. It changes nothing in the store until you run take-over."""
    output = Output(as_json)
    path = restore_metadata(load_settings(config), source.expanduser().absolute())
    output.rows("Restored metadata", ("file",), [(path,)])
    output.say(
        "note: the backup may lack later copies and decisions. 'tiered-storage rebuild-metadata' rebuilds newer "
        "metadata from the store (move this one away first); 'tiered-storage metadata take-over' makes this backup "
        "valid"
    )


@app.command()
def move(
    target: Annotated[
        str,
        typer.Argument(
            help="sqlite:///folder/file.db, or postgresql://user@host:5432/database; no password. Or topic: move the "
            "segments into the metadata topic; or database: move them back.",
            show_default=False,
        ),
    ],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move all metadata to another database, or the segments into a topic of Kafka or back, verified row by row. End
    every other process of Remote Log first.
    """
    output = Output(as_json)
    settings = load_settings(config)
    if target in {TO_TOPIC, TO_DATABASE}:
        moved = move_segments(settings, wall_clock, into_topic=target == TO_TOPIC)
        row = (moved.source, moved.target, moved.segments)
        output.rows("Moved segments", ("from", "to", "segments"), [row])
        if target == TO_DATABASE:
            output.say(
                "note: take remote.log.metadata.manager.class.name out of the settings, and start every process again; "
                "the topic is not used any more"
            )
        return
    if has_password(target):
        raise ConfigurationError(
            "the new URL contains a password, which others can see in the list of processes: give it as PGPASSWORD or "
            "in ~/.pgpass"
        )
    where = move_store(settings, target, wall_clock, lambda: open_storage(settings, store_options(settings)))
    output.rows("Moved metadata", ("from", "to"), [where])
    output.say(f"note: set rlmm.config.url to {target}, and start every process again; the old metadata are refused")


@app.command()
def status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show where the segments' metadata are, how much of a metadata topic this host has consumed, and which of its
    records changed nothing.
    """
    output = Output(as_json)
    with opened(config, output, outdated=True) as remote_log:
        found = metadata_status(remote_log.context.store)
    rows = [(each.partition, each.start, each.end, each.consumed, each.skipped) for each in found.partitions]
    columns = ("metadata partition", "first offset", "end offset", "consumed", "skipped")
    output.rows(f"Segments in {found.where}", columns, rows, where=found.where, skipped=found.skipped)
    for each in found.skipped:
        output.say(f"note: metadata partition {each.metadata_partition}, offset {each.offset}: {each.reason}")


@app.command()
def verify(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check the metadata: read the whole database, and the whole metadata topic, compared with this host's cache."""
    output = Output(as_json)
    with opened(config, output, outdated=True) as remote_log:
        remote_log.context.store.check_integrity()
        found = verified(remote_log.context.store)
    row = (found.where, found.segments, found.skipped)
    output.rows("The metadata are intact", ("segments are in", "segments", "skipped records"), [row])


@app.command("take-over")
def take_over_store(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bind the store to these metadata, after a restore, a move of their file, or damage to store.json."""
    output = Output(as_json)
    with opened(config, output, outdated=True) as remote_log:
        if not yes:
            unmarked = (
                f"{remote_log.context.settings.rsm_config_url} belongs to no metadata: is the URL right, "
                "and the disk mounted?"
            )
            holder = store_holder(remote_log.context.settings, remote_log.context.options) or unmarked
            typer.confirm(f"{holder} {_WARNING}", abort=True, err=True)
        done = take_over(remote_log.context)
    output.rows("Took over", ("generation", "rights withdrawn"), [(done.generation, done.was_outdated)])
    if done.was_outdated:
        output.say(
            "note: these metadata were older than the store: deletion is forbidden for every topic until "
            "'tiered-storage topics allow-deletion' allows it again; run 'tiered-storage audit' first"
        )


@app.command("trust-clock")
def trust_clock(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let deletions continue by this machine's clock, after a jump of the clock or a restart without NTP."""
    output = Output(as_json)
    with opened(config, output) as remote_log:
        clocks = ClockAgreement.of(remote_log.context)
        if why := clocks.why_refused():
            output.say(f"note: {why}")
        if not yes:
            typer.confirm(
                f"This machine's clock is at {as_date(remote_log.context.clock())}. Is it right?", abort=True, err=True
            )
        clocks.trust()
    output.rows("Trusted the clock", ("clock",), [(as_date(remote_log.context.clock()),)])
    output.say("note: what is marked for deletion waits for remote.log.deletion.grace.ms once more")
