"""What other processes do to a metadata store in tests; importable, so that a new process finds it."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any
from unittest import mock

from sqlalchemy import Engine, event

from support.command_line import run
from support.metadata_stores import FINISHED, ManualClock, a_segment, a_step
from tiered_storage.clock import wall_clock
from tiered_storage.errors import LeaseHeldError, LeaseLostError
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.metadata.sql.database import moving
from tiered_storage.remote_log.metadata.sql.store import open_metadata_store
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentId, TopicIdPartition

PATIENCE_SECONDS = 120
NOBODY = 65_534


def in_processes(count: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run `work(number, barrier, *arguments)` in `count` new processes at once; return what each returned, in order."""
    # Its processes have inherited nothing of ours, as spawned ones, but need not import it all one by one.
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
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


def move_until(step: str, source: str, target: str) -> None:
    """Move metadata from `source` to `target`; kill this process, before it can do anything else, at `step`."""
    setattr(moving, step, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    moving.move_metadata(source, target, wall_clock, 1000, lambda _: None)


def run_until_compared(module: str, *arguments: str) -> None:
    """Run a command; kill this process when `module` begins to compare the rows that it has copied."""
    with mock.patch(f"{module}.ensure_same_rows", lambda *_: os.kill(os.getpid(), signal.SIGKILL)):
        raise AssertionError(f"compared nothing: {run(*arguments)}")


def move_until_point(number: int, source: str, target: str) -> None:
    """Move metadata from `source` to `target`; kill this process at the point of that number, from 1.

    Points are before and after each commit in either database, and before every tenth statement.
    """
    statements, points = itertools.count(), itertools.count(1)
    has_committed = False

    def pass_point() -> None:
        if next(points) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def note_commit(*_: object) -> None:
        nonlocal has_committed
        pass_point()
        has_committed = True

    def note_statement(*_: object) -> None:
        nonlocal has_committed
        if next(statements) % 10 == 0 or has_committed:
            pass_point()
        has_committed = False

    event.listen(Engine, "commit", note_commit)
    event.listen(Engine, "before_cursor_execute", note_statement)
    moving.move_metadata(source, target, wall_clock, 10_000, lambda _: None)


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


def open_fresh_stores(_number: int, barrier: Barrier, urls: Sequence[str]) -> list[str]:
    """Open each of `urls` at the same moment as the other processes; return the UUIDs of the stores."""
    uuids = []
    for url in urls:
        barrier.wait(PATIENCE_SECONDS)
        with open_metadata_store(url, ManualClock()) as store:
            uuids.append(store.identity.metadata_uuid)
    return uuids


def acquire_at_once(number: int, barrier: Barrier, url: str, partitions: Sequence[TopicIdPartition]) -> list[int]:
    """Try for the lease of each partition against the other processes; return the partitions that were won."""
    won = []
    with open_metadata_store(url, ManualClock()) as store:
        barrier.wait(PATIENCE_SECONDS)
        for partition in partitions:
            try:
                store.leases.acquire(partition, f"process-{number}", 60_000)
            except LeaseHeldError:
                continue
            won.append(partition.partition)
    return won


def acquire_in_turns(_number: int, barrier: Barrier, url: str, partition: TopicIdPartition, steps: int) -> list[int]:
    """Take the lease again and again, against other processes of the same owner; return the numbers that were given."""
    with open_metadata_store(url, ManualClock()) as store:
        barrier.wait(PATIENCE_SECONDS)
        return [store.leases.acquire(partition, "one owner", 60_000).fencing_number for _ in range(steps)]


@dataclass(slots=True)
class SegmentsWritten:
    """The segments that a process added and finished, as (partition, id), and its last refused attempt."""

    added: list[tuple[int, str]] = field(default_factory=list)
    finished: list[tuple[int, str]] = field(default_factory=list)
    last_refusal: str = ""

    def write(self, store: MetadataStore, lease: Lease, start: int) -> None:
        """Add a segment of ten offsets under `lease` and finish it, unless the lease is lost."""
        partition = lease.topic_id_partition
        name = (partition.partition, f"lease-{lease.fencing_number}-at-{start}")
        segment = a_segment(lease, start, start + 9, segment_id=RemoteLogSegmentId(partition, name[1]))
        try:
            store.segments.add_remote_log_segment_metadata(segment, lease)
            self.added.append(name)
            store.segments.update_remote_log_segment_metadata(a_step(segment, FINISHED), lease)
            self.finished.append(name)
        except LeaseLostError as error:
            self.last_refusal = f"{name}: {error}"


def write_segments_at_once(
    number: int, barrier: Barrier, url: str, own: Sequence[TopicIdPartition], contested: TopicIdPartition, count: int
) -> SegmentsWritten:
    """Write `count` segments of partition `number` of `own` at the same time as the other processes.

    Processes 0 and 1 also write to `contested`, and take its lease from one another before each segment. At the end,
    process 0 tries again with the first lease that it got.
    """
    written = SegmentsWritten()
    with open_metadata_store(url, ManualClock(), busy_timeout_ms=PATIENCE_SECONDS * 1000) as store:
        lease = store.leases.acquire(own[number], f"process-{number}", 60_000)
        fights = number < 2
        first = store.leases.acquire(contested, "fighters", 60_000) if fights else lease
        barrier.wait(PATIENCE_SECONDS)
        for step in range(count):
            written.write(store, lease, step * 10)
            if fights:
                written.write(store, store.leases.acquire(contested, "fighters", 60_000), step * 10)
        barrier.wait(PATIENCE_SECONDS)
        if number == 0:
            written.write(store, first, count * 10)
    return written


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
