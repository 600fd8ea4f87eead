"""The commands for safe deletion: stop all deletions, and show failed ones."""

from __future__ import annotations

import getpass
import socket
from pathlib import Path
from typing import Annotated

import typer

from tiered_storage.cli.common.output import Output
from tiered_storage.cli.common.session import (
    ConfigOption,
    JsonOption,
    PartitionsOption,
    TopicsOption,
    known_selection,
    opened,
)
from tiered_storage.clock import wall_clock
from tiered_storage.errors import (
    ConfigurationError,
    MetadataMissingError,
    OutdatedMetadataError,
    StoreMismatchError,
    TieredStorageError,
)
from tiered_storage.remote_log.context import stop_by_metadata_alone
from tiered_storage.remote_log.metadata.safety import Stop
from tiered_storage.settings.settings import WHERE_METADATA_ARE, load_settings

_COLUMNS = ("stopped", "said by", "said at", "reason")
_FAILURE_COLUMNS = ("partition", "segment id", "attempts", "first failed at", "last failed at", "error")

_NOT_STOPPED = (
    "deletions are NOT stopped, since the stop could not be written; until it can, end everything that deletes: pause "
    "the DAGs enforce_local_retention, expire_remote_segments, delete_records and delete_topic and end their runs (or "
    "run make down), run no command that deletes, and revoke this user's right to delete in the store"
)


def stop_deletions(
    reason: Annotated[
        str, typer.Option("--reason", help="Why: shown wherever a deletion is stopped.", show_default=False)
    ] = "",
    lift: Annotated[bool, typer.Option("--lift", help="Lift the stop.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop all deletions of every topic, in both tiers, until you lift the stop. Running jobs stop too.

    It needs only the metadata: a problem with the store or the settings does not prevent it.
    """
    if lift and reason:
        raise ConfigurationError("--reason is for a stop: leave it out with --lift")
    output = Output(as_json)
    if lift:
        with opened(config, output) as remote_log:
            remote_log.context.safety.lift(_person())
            stop = remote_log.context.safety.stopped()
    else:
        stop = _stopped(reason, config, output)
    row = (False, None, None, None) if stop is None else (True, stop.stopped_by, stop.stopped_at, stop.reason)
    output.rows("Deletions", _COLUMNS, [row])


def failed_deletions(
    topics: TopicsOption = ".*",
    partitions: PartitionsOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the remote segments whose objects could not be deleted. Every run of expire retries them."""
    output = Output(as_json)
    with opened(config, output) as remote_log:
        failures = list(remote_log.context.safety.failures(known_selection(remote_log.context, topics, partitions)))
    rows = [
        (
            str(one.segment_id.topic_id_partition), one.segment_id.id, one.attempts,
            one.first_failed_at, one.last_failed_at, one.error,
        )
        for one in failures
    ]  # fmt: skip
    output.rows("Failed deletions", _FAILURE_COLUMNS, rows)
    if failures:
        raise typer.Exit(1)


def _stopped(reason: str, config: Path | None, output: Output) -> Stop | None:
    try:
        with opened(config, output, create=True, outdated=True) as remote_log:
            remote_log.context.safety.stop(reason, _person())
            return remote_log.context.safety.stopped()
    except (OutdatedMetadataError, MetadataMissingError, StoreMismatchError):
        # Someone who wants to stop the live metadata must learn that these are not the live ones.
        raise
    except (TieredStorageError, OSError) as error:
        try:
            where = load_settings(config, only=WHERE_METADATA_ARE)
            stop = stop_by_metadata_alone(where, reason, _person(), wall_clock)
        except (TieredStorageError, OSError):
            output.say(f"note: {_NOT_STOPPED}")
            raise
        output.say(f"note: {error}")
        output.say("note: deletions are stopped, in the metadata alone; repair the problem above")
        return stop


def _person() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # In a container the user may have no name.
        user = "somebody"
    return f"{user} on {socket.gethostname()}"
