"""Commands that metadata refuse, and copies of metadata that they refuse."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from support.command_line import CommandResult, run_on
from support.metadata_files import database_of
from support.remote_logs import RemoteLogFiles


def copied_to(files: RemoteLogFiles, root: Path) -> RemoteLogFiles:
    """Return a test system on copies of the local logs and of the metadata, with the live system's store."""
    shutil.copytree(files.log_directory, root / "logs")
    (root / "state").mkdir()
    shutil.copy(database_of(files), root / "state")
    url = str(files.properties.get("rsm.config.url", files.store))
    return replace(files, root=root, properties={**files.properties, "rsm.config.url": url})


def everything(files: RemoteLogFiles) -> set[str]:
    return {str(path) for path in (*files.log_directory.rglob("*.log"), *files.objects())}


def refused(files: RemoteLogFiles, *command: object) -> CommandResult:
    before = everything(files)
    done = run_on(files, *command)
    assert everything(files) == before
    assert done.exit_code == 1, done
    return done
