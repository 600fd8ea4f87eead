"""Become spark-submit, and end with the task that started it: end_with_task.py PARENT_ID spark-submit ARGUMENTS...

Standard input has variables for the program's environment, as JSON: the job's secrets, which no argument may have.

A program is not notified when its parent is killed (SIGKILL): Spark would still write objects that are never committed.
Linux sends a signal to a program that requested it, and the request survives exec. SIGTERM lets Spark end its workers
and remove its temporary files.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Request the signal, take the variables, and become the program."""
    parent, program, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit("the task was killed before Spark began")
    os.environ.update(json.load(sys.stdin))
    try:
        os.execvp(program, [program, *arguments])  # noqa: S606 - the command of Airflow's hook
    except OSError as error:
        sys.exit(f"{program}: {error.strerror}: is it on the PATH?")


if __name__ == "__main__":
    main()
