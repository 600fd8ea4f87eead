"""`tiered-storage`: by hand what the DAGs do on a schedule, on the same library calls.

Every command takes --json for machines; its exit code is 0 only when all that was asked for was done.
"""

from __future__ import annotations

import json
import sys

import typer

from tiered_storage import (
    __version__,
    cli_copy,
    cli_delete,
    cli_doctor,
    cli_dump,
    cli_read,
    cli_repair,
    cli_restore,
    cli_safety,
    cli_topics,
)
from tiered_storage.errors import TieredStorageError

app = typer.Typer(no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False, add_completion=False)
app.command()(cli_copy.plan)
app.command()(cli_copy.copy)
app.command()(cli_copy.retain)
app.command()(cli_copy.expire)
app.command()(cli_delete.delete_records)
app.command()(cli_delete.delete_topic)
app.command()(cli_safety.stop_deletions)
app.command()(cli_safety.failed_deletions)
app.command()(cli_read.segments)
app.command()(cli_read.read)
app.command()(cli_read.offsets)
app.command()(cli_read.audit)
app.command()(cli_repair.repair)
app.command()(cli_repair.rebuild_metadata)
app.command()(cli_restore.restore)
app.command()(cli_dump.dump)
app.command()(cli_doctor.doctor)
app.add_typer(cli_topics.app, name="topics")


@app.command()
def version() -> None:
    """Show the version."""
    sys.stdout.write(f"{__version__}\n")


def main() -> None:
    """Run a command; what went wrong is one line on standard error (with --json: a document on standard output)."""
    try:
        app()
    except TieredStorageError as error:
        if "--json" in sys.argv:
            document = {"error": type(error).__name__, "message": str(error), "retriable": error.retriable}
            sys.stdout.write(json.dumps(document) + "\n")
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
