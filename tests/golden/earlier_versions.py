"""The state that earlier versions left, tests/golden/remote-log-*: where it is, and how a test takes one up."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TypeVar

from support.clocks import ManualClock, stamped
from support.remote_logs import CLUSTER_ID, NOW
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.settings.settings import load_settings

__all__ = [
    "CLUSTER_ID",
    "FOLDER",
    "PLACE",
    "RUN",
    "YESTERDAY",
    "copy_generation",
    "generation",
    "messages",
    "open_at",
    "work_files",
]  # fmt: skip

Message = TypeVar("Message")

YESTERDAY = NOW + 10_000_000
"""The time (ms) at which it was left."""

PLACE = "/yesterday"
"""Stands in the work area's files for the folder that everything was in."""

RUN = "runs/yesterday"
FOLDER = f"{RUN}/1"

_GOLDEN = Path(__file__).parent


def generation(number: int) -> Path:
    """Return where the state of that generation is."""
    return _GOLDEN / f"remote-log-{number}"


def copy_generation(number: int, root: Path) -> Path:
    """Copy a generation's state to `root`, which must not exist, as if it had always been there."""
    shutil.copytree(generation(number), root)
    for text in work_files(root):
        text.write_text(text.read_text("utf-8").replace(PLACE, str(root)), "utf-8")
    return root


def open_at(root: Path, now: int = YESTERDAY, *, outdated: bool = False) -> RemoteLogManager:
    """Open the remote log at `root`; use it in a `with`."""
    settings = load_settings(root / "settings.yaml", environ={})
    clock, options = ManualClock(now), store_options(settings, {})
    opened = RemoteLogManager.open(settings, clock, options, create=True, outdated=outdated, boot_clock=clock.boot_time)
    return stamped(opened)


def messages(remote_log: RemoteLogManager, path: str, kind: type[Message]) -> list[Message]:
    """Return the messages at `path`, which nobody signed yet: how they are written has not changed."""
    return remote_log.context.work.read_report(path, kind)


def work_files(root: Path) -> list[Path]:
    """Return the work area's files."""
    return [path for path in (root / "state" / "work").rglob("*.json*") if path.is_file()]
