"""This library as a zip for Spark's workers, named by its content.

Workers unpack it before they import it: the kernels' machine code is cached beside their sources, which does not work
in a zip. The same content has the same name, so it is unpacked and compiled once per machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]
_STAMP = (1980, 1, 1, 0, 0, 0)
_SUBMITTED = "remote-log-submit-"


def build_library_archive(folder: Path) -> Path:
    """Write `tiered_storage-{hash}.zip` into `folder` and return its path."""
    files = sorted(path for path in _PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    digest = hashlib.sha256()
    for path in files:
        digest.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + path.read_bytes())
    archive = folder / f"tiered_storage-{digest.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for path in files:
            # A fixed time: the archive's bytes depend on nothing but its content.
            entry = zipfile.ZipInfo(str(Path("tiered_storage") / path.relative_to(_PACKAGE)), _STAMP)
            out.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return archive


@contextmanager
def submit_folder() -> Iterator[Path]:
    """Yield a private temporary folder for the submission, removed at the end of the `with` block.

    Folders of killed processes are removed first: a folder in use is locked.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_SUBMITTED}*"):
        if (lock := _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)
    folder = Path(tempfile.mkdtemp(prefix=_SUBMITTED))
    while (lock := _locked(folder, fcntl.LOCK_SH)) is None:
        # Another process took it for an abandoned one before it was locked.
        folder = Path(tempfile.mkdtemp(prefix=_SUBMITTED))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked(folder: Path, how: int) -> int | None:
    """Return the descriptor that holds the lock until it is closed; None if the folder is gone, locked, or foreign."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with suppress(OSError):
        fcntl.flock(descriptor, how)
        if folder.is_dir():
            return descriptor
    os.close(descriptor)
    return None
