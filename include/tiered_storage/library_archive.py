"""This library as a zip for Spark's workers, named by its content.

Workers unpack it before they import it: the machine code of the kernels is kept beside their sources, which a zip
cannot do. The same content has the same name, so that it is unpacked and compiled once on every machine.
"""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

_PACKAGE = Path(__file__).parent
_STAMP = (1980, 1, 1, 0, 0, 0)


def build_library_archive(folder: Path) -> Path:
    """Write `tiered_storage-{hash}.zip` into `folder` and return its path."""
    files = sorted(path for path in _PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    digest = hashlib.sha256()
    for path in files:
        digest.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + path.read_bytes())
    archive = folder / f"tiered_storage-{digest.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for path in files:
            # A fixed time: the archive's bytes, too, depend on nothing but its content.
            entry = zipfile.ZipInfo(str(Path("tiered_storage") / path.relative_to(_PACKAGE)), _STAMP)
            out.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return archive
