from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import tiered_storage

PROGRAM = """
import sys
from support.records import batches_of
from tiered_storage.kafka_log.kernels import machine_code
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner

compiled = []
compile_now = machine_code.compiled_code
machine_code.compiled_code = lambda: compiled.append(compile_now()) or compiled[0]
table, _ = SegmentScanner("segment", 0).feed(memoryview(b"".join(batches_of([1, 2, 3]))))
assert table.record_count.tolist() == [1, 2, 3]
assert "numba" not in sys.modules
print(bool(compiled))
"""


def test_machine_code_of_one_process_serves_the_next(tmp_path: Path) -> None:
    """Beside the sources of a copy of the package, which has none yet; or in the user's cache, where that is no use."""
    package = Path(tiered_storage.__file__).parent
    for name in ("first", "second"):
        shutil.copytree(package, tmp_path / name / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    in_the_way = tmp_path / "second" / package.name / "kafka_log" / "kernels" / "__pycache__"
    in_the_way.touch()

    compiled = [_compiles(tmp_path / name, tmp_path / "cache") for name in ("first", "first", "second", "second")]

    assert compiled == [True, False, True, False]
    assert len([*(tmp_path / "first").rglob("kernels-*.o")]) == len([*(tmp_path / "cache").rglob("kernels-*.o")]) == 1


def _compiles(root: Path, cache: Path) -> bool:
    path = os.pathsep.join([str(root), str(Path(__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, capture_output=True, text=True)
    return done.stdout == "True\n"
