"""Work without the rights of root."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

from support.processes import PATIENCE_SECONDS

NOBODY = 65_534


def as_nobody(work: Callable[[], Any]) -> Any:
    """Run `work` in a forked process without the rights of root; return what it returned, or the error as text."""
    context = get_context("fork")
    answers = context.Queue()

    def answer() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        try:
            answers.put(work())
        except Exception as error:  # noqa: BLE001 - whatever it is, the test asks for it
            answers.put(f"{type(error).__name__}: {error}")

    process = context.Process(target=answer)
    process.start()
    answered = answers.get(timeout=PATIENCE_SECONDS)
    process.join(PATIENCE_SECONDS)
    return answered
