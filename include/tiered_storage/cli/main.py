"""`tiered-storage`: run by hand what the DAGs run on a schedule, with the same library calls.

Every command takes --json for machines. Its exit code is 0 only if everything requested was done.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import sys
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

# numpy starts a thread for each core, for linear algebra that nothing here uses: a tenth of a command's start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tiered_storage import __version__
from tiered_storage.errors import TieredStorageError

COMMANDS = {
    "copy": {
        "plan": "Show which closed segments a copy would copy, and which it leaves out and why. Changes nothing.",
        "copy": "Copy closed segments to the remote tier and commit their metadata, in this process.",
        "service": "Copy and expire continuously, in a process that stays up, without Airflow and Spark.",
        "adopt": "Copy a topic's segments out of Kafka's own remote tier, byte for byte, under the topic's own id.",
    },
    "delete": {
        "retain": "Delete local segments that are past local retention and safe in the remote tier, if deletion is "
        "allowed.",
        "expire": "Delete what is past total retention, if deletion is allowed, and clean up after unfinished copies.",
        "delete-records": "Delete the records of a partition before an offset, if remote deletion is allowed.",
        "delete-topic": "Delete all remote data of one incarnation of a topic, if remote deletion is allowed. Local "
        "data stay.",
        "undelete": "Restore the deleted remote data of a topic while their objects still exist.",
    },
    "safety": {
        "stop-deletions": "Stop all deletions of every topic, in both tiers, until you lift the stop. Running jobs "
        "stop too.",
        "failed-deletions": "Show the remote segments whose objects could not be deleted. Every run of expire retries "
        "them.",
    },
    "leases": {
        "leases": "Show which runs hold which partitions, and end the leases of runs that no longer exist.",
    },
    "read": {
        "segments": "Show the remote segments in every state except deleted.",
        "read": "Read records from both tiers. With --json: one object a line; keys and values in base64.",
        "offsets": "Show a partition's offsets over both tiers, by Kafka's names for them and by time.",
        "audit": "Compare the store with the metadata; exit code 1 if there is an anomaly or nothing matches. Changes "
        "nothing.",
        "gateway": "Serve Kafka clients: they read whole topics through it, remote and local records, by the brokers' "
        "own protocol, logins and rights.",
    },
    "repair": {
        "repair": "Audit, copy damaged segments again if the local log still has them, commit complete but uncommitted "
        "copies that no segment covers, delete orphans, and audit again.",
        "rebuild-metadata": "Rebuild lost metadata from the store alone, into a new file. Then deletion is "
        "forbidden for every topic.",
        "rotate-keys": "Wrap the data keys of encrypted segments again, by the active key of the key ring. Segment "
        "data are not touched.",
    },
    "restore": {
        "restore": "Restore a topic, or part of it, from the store: into a broker's log directory, or into a running "
        "cluster.",
        "follow": "Follow a partition of the running cluster into a log directory, from where the remote log lets it "
        "start.",
        "move-partition": "Move a partition to another log directory, with its remote log index. Nobody may run in "
        "either of them.",
    },
    "metadata": {
        "metadata": "Show and verify the metadata, back them up, move them, or let metadata take over a store.",
    },
    "dump": {
        "dump": "Show the content of logs, indexes, snapshots and checkpoints, and what is wrong with them. The broker "
        "may be running.",
    },
    "doctor": {
        "doctor": "Check settings, paths, rights, store, metadata and clock: before the first run, and when something "
        "fails. Changes nothing.",
        "metrics": "Show by topic how far copying lags, what is stuck or failed, and whether the offsets of the tiers "
        "fit together.",
    },
    "topics": {
        "topics": "Show and change what Remote Log may do with each topic. It copies and deletes nothing that you did "
        "not enable here or in the settings file.",
    },
}
"""Each module with commands, and the first paragraph of each command's help, shown without importing the module."""


class LazyCommand(TyperCommand):
    """A command whose module is imported only when it runs or shows its help: most imports are slow."""

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name=name, help=summary, callback=None)
        self._module = module

    @cached_property
    def loaded(self) -> Any:
        """The module's command, or group of commands, of this name; imports the module."""
        name = str(self.name)
        # Modules live as long as the process; garbage collection during imports takes a fifth of the start-up time.
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
        """Make the context of the loaded command, which runs in place of this one."""
        return self.loaded.make_context(*arguments, **options)


class _Commands(TyperGroup):
    """All commands; each is imported only when it is called."""

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
    """Run a command; report an error as one line on standard error (with --json: a document on standard output)."""
    try:
        app()
    except TieredStorageError as error:
        _end(error, str(error), retriable=error.retriable)
    except OSError as error:
        _end(error, _described(error), retriable=False)


def _end(error: Exception, message: str, *, retriable: bool) -> NoReturn:
    if "--json" in sys.argv:
        document = {"error": type(error).__name__, "message": message, "retriable": retriable}
        # The output may be what failed.
        with suppress(OSError):
            sys.stdout.write(json.dumps(document) + "\n")
    sys.stderr.write(f"error: {message}\n")
    sys.exit(1)


def _described(error: OSError) -> str:
    """Return which file an operation failed on, and what the system reported, in one line."""
    names = " to ".join(
        os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)
    )
    code = errno.errorcode.get(error.errno or 0, type(error).__name__)
    said = " ".join((error.strerror or str(error)).split())
    return (
        f"{names or 'a file that the system does not name'}: {said} ({code}): the command ended early. Look at the "
        "file's rights and its disk ('tiered-storage doctor' looks at the directories of the settings), then repeat it"
    )


if __name__ == "__main__":
    main()
