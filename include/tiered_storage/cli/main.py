"""`tiered-storage`: by hand what the DAGs do on a schedule, on the same library calls.

Every command takes --json for machines; its exit code is 0 only when all that was asked for was done.
"""

from __future__ import annotations

import gc
import json
import sys
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tiered_storage import __version__
from tiered_storage.errors import TieredStorageError

COMMANDS = {
    "copy": {
        "plan": "Show which closed segments a copy would move, and what is left out and why. Changes nothing.",
        "copy": "Copy closed segments to the remote tier and commit their metadata, in this process.",
        "retain": "Remove local segments that are past local retention and safe in the remote tier, where deletion is "
        "allowed.",
        "expire": "End what is past total retention, where deletion is allowed, and clean up after unfinished copies.",
    },
    "delete": {
        "delete-records": "Delete the records of a partition before an offset, in both tiers, where remote deletion is "
        "allowed.",
        "delete-topic": "Delete everything remote of one life of a topic, where remote deletion is allowed. What is "
        "local stays.",
        "undelete": "Bring back what was deleted of a topic, while its objects are still there.",
    },
    "safety": {
        "stop-deletions": "Let nothing of any topic be deleted, in either tier, until that is lifted; runs under way "
        "stop too.",
        "failed-deletions": "Show the remote segments whose objects could not be deleted. Every run of expire tries "
        "them again.",
    },
    "leases": {
        "leases": "Show which runs hold which partitions, and end what a run left that is gone.",
    },
    "read": {
        "segments": "Show the remote segments, in every state but the deleted ones.",
        "read": "Read records, from whichever tier has them. With --json: one object a line; keys and values in "
        "base64.",
        "offsets": "Show a partition's offsets by their names in Kafka, and by time, over both tiers.",
        "audit": "Hold the store against the metadata; exit code 1 for any anomaly, or where nothing matches. Changes "
        "nothing.",
    },
    "repair": {
        "repair": "Audit, copy anew what is damaged where the local log still has it, finish whole copies that nobody "
        "finished and nothing else holds, remove leftovers, and audit again.",
        "rebuild-metadata": "Make lost metadata anew from the store alone, into a new file. All that deletes is "
        "forbidden afterwards.",
    },
    "restore": {
        "restore": "Bring a topic, or part of it, back from the store: into a broker's log directory, or into a "
        "running cluster.",
    },
    "metadata": {
        "metadata": "Back up the metadata, put a backup back, or let metadata take over.",
    },
    "dump": {
        "dump": "Show what is in logs, indexes, snapshots and checkpoints, and what is wrong with them; a broker may "
        "be at work.",
    },
    "doctor": {
        "doctor": "Look whether everything is as it must be: before the first run, and when something fails. Changes "
        "nothing.",
    },
    "topics": {
        "topics": "Show and decide what may be done with each topic. Nothing is copied or deleted that was not "
        "switched on here or in the settings file.",
    },
}
"""Each module with commands, and the first paragraph of their help: it is shown without importing the module."""


class LazyCommand(TyperCommand):
    """A command whose module is imported when it runs or explains itself: most import what takes long."""

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name=name, help=summary, callback=None)
        self._module = module

    @cached_property
    def loaded(self) -> Any:
        """The module's command of this name, or its group of commands; imports the module."""
        name = str(self.name)
        # What an import makes lives as long as the process: looking for garbage meanwhile is a fifth of the start.
        gc.disable()
        try:
            module = import_module(f"tiered_storage.cli.{self._module}")
        finally:
            gc.freeze()
            gc.enable()
        found = getattr(module, name.replace("-", "_"), None) or module.app
        around = typer.Typer(add_completion=False)
        around.callback()(lambda: None)
        if isinstance(found, typer.Typer):
            around.add_typer(found, name=name)
        else:
            around.command(name)(found)
        return typer.main.get_group(around).commands[name]

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Make the context of the command itself, which then runs in this one's place."""
        return self.loaded.make_context(*arguments, **options)


class _Commands(TyperGroup):
    """All commands, each imported only when it is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for module, summaries in COMMANDS.items():
            for name, summary in summaries.items():
                self.add_command(LazyCommand(name, module, summary))


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    help=__doc__,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


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
