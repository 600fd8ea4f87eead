"""A Spark job of ours whose limits count bytes instead of waiting.

    spark-submit … counted_job.py FILE JOB.py ARGUMENTS

Each worker appends a line to FILE for each of its limits: the limit in bytes per second, and the bytes that passed.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import job_stub

if TYPE_CHECKING:
    from tiered_storage.remote_log.jobs.throttle import QuotaLimit
    from tiered_storage.remote_log.jobs.worker import JobAccess

RunSome = Callable[["JobAccess", Sequence[int]], int]


def run_counted(file: Path, program: str) -> None:
    """Run `program` with the arguments of this process."""
    run_groups = job_stub.run_groups

    def run_groups_counted(about: str, run_some: RunSome) -> tuple[int, int]:
        def counted(access: JobAccess, groups: Sequence[int]) -> int:
            from tiered_storage.remote_log.jobs.throttle import QuotaLimit

            passed: Counter[QuotaLimit] = Counter()

            def spend(limit: QuotaLimit, size: int) -> None:
                passed[limit] += size

            QuotaLimit.spend = spend  # type: ignore[assignment, method-assign]
            done = run_some(access, groups)
            with file.open("a") as lines:
                lines.writelines(f"{json.dumps([each.bytes_per_second, size])}\n" for each, size in passed.items())
            return done

        return run_groups(about, counted)

    job_stub.run_groups = run_groups_counted
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    _, counting, job, *arguments = sys.argv
    sys.argv = [job, *arguments]
    run_counted(Path(counting), job)
