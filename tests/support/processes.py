"""Work in other processes: several at once, one that is killed, one without the rights of root."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.queues import Queue
from typing import Any

PATIENCE_SECONDS = 120


def in_processes(count: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run `work(number, barrier, *arguments)` in `count` new processes at once; return what each returned, in order."""
    # Its processes have inherited nothing of ours, as spawned ones, but need not import it all one by one.
    context = get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    barrier, answers = context.Barrier(count), context.Queue()
    processes = [
        context.Process(
            target=_in_environment, args=(dict(os.environ), _answer, answers, work, number, barrier, *arguments)
        )
        for number in range(count)
    ]
    for process in processes:
        process.start()
    answered = dict(answers.get(timeout=PATIENCE_SECONDS) for _ in processes)
    for process in processes:
        process.join(PATIENCE_SECONDS)
    return [answered[number] for number in range(count)]


def killed(work: Callable[..., None], *arguments: Any) -> int | None:
    """Run `work(*arguments)`, which kills its process, in a new one; return how that ended."""
    process = get_context("forkserver").Process(target=_in_environment, args=(dict(os.environ), work, *arguments))
    process.start()
    process.join(PATIENCE_SECONDS)
    return process.exitcode


def _in_environment(variables: Mapping[str, str], work: Callable[..., Any], *arguments: Any) -> None:
    """Run `work` with `variables`: a fork server has those of the test that first used it."""
    os.environ.clear()
    os.environ.update(variables)
    work(*arguments)


def _answer(answers: Queue[tuple[int, Any]], work: Callable[..., Any], number: int, *arguments: Any) -> None:
    try:
        answers.put((number, work(number, *arguments)))
    except Exception as error:
        answers.put((number, repr(error)))
        raise
