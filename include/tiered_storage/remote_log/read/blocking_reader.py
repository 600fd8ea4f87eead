"""RemoteLogReader without asyncio: plain calls and iterators, over an event loop in its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Self, TypeVar

import pyarrow as pa

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.columnar.decoder import RecordRange
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.log_reader import READ_UNCOMMITTED, RemoteLogReader
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage.remote_log.read.read_values import (
    NO_EPOCHS,
    FetchedBatches,
    FetchEpochs,
    FoundOffset,
    Isolation,
    OffsetSpec,
)
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

Result = TypeVar("Result")


class BlockingLogReader:
    """The same reads as RemoteLogReader, with the same results and exceptions. Thread-safe.

    `close` it, or use it in a `with`; that closes its reader too. Closing an iterator early cancels its prefetching.
    """

    def __init__(self, reader: RemoteLogReader) -> None:
        self._reader = reader
        self._lock = threading.RLock()
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="log reader", daemon=True)
        self._thread.start()

    def snapshot(self, partition: TopicIdPartition) -> PartitionSnapshot:
        """As RemoteLogReader.snapshot."""
        return self._run(self._reader.snapshot(partition))

    def offsets(
        self, partition: TopicIdPartition, spec: OffsetSpec | int, isolation: Isolation = READ_UNCOMMITTED
    ) -> FoundOffset | None:
        """As RemoteLogReader.offsets."""
        return self._run(self._reader.offsets(partition, spec, isolation))

    def batches(
        self,
        partition: TopicIdPartition,
        start_offset: int,
        *,
        end_offset: int | None = None,
        isolation: Isolation = READ_UNCOMMITTED,
        deadline_ms: int | None = None,
        epochs: FetchEpochs = NO_EPOCHS,
    ) -> Generator[FetchedBatches, None, None]:
        """As RemoteLogReader.batches."""
        return self._iterate(
            self._reader.batches(
                partition,
                start_offset,
                end_offset=end_offset,
                isolation=isolation,
                deadline_ms=deadline_ms,
                epochs=epochs,
            )
        )

    def records(
        self,
        partition: TopicIdPartition,
        start_offset: int,
        *,
        end_offset: int | None = None,
        isolation: Isolation = READ_UNCOMMITTED,
        deadline_ms: int | None = None,
        epochs: FetchEpochs = NO_EPOCHS,
    ) -> Generator[Record, None, None]:
        """Yield records one by one, without control records; at READ_COMMITTED also without aborted ones."""
        for fetched in self.batches(
            partition, start_offset, end_offset=end_offset, isolation=isolation, deadline_ms=deadline_ms, epochs=epochs
        ):
            yield from fetched.records()

    def tables(
        self,
        partition: TopicIdPartition,
        start_offset: int,
        *,
        end_offset: int | None = None,
        isolation: Isolation = READ_UNCOMMITTED,
        columns: Sequence[str] | None = None,
        within: RecordRange | None = None,
        deadline_ms: int | None = None,
        epochs: FetchEpochs = NO_EPOCHS,
    ) -> Generator[pa.RecordBatch, None, None]:
        """As RemoteLogReader.tables."""
        return self._iterate(
            self._reader.tables(
                partition, start_offset, end_offset=end_offset, isolation=isolation, columns=columns, within=within,
                deadline_ms=deadline_ms, epochs=epochs,
            )
        )  # fmt: skip

    def segment_bytes(
        self, partition: TopicIdPartition, segment_id: str, start: int = 0, end_inclusive: int | None = None
    ) -> Generator[bytes, None, None]:
        """As RemoteLogReader.segment_bytes."""
        return self._iterate(self._reader.segment_bytes(partition, segment_id, start, end_inclusive))

    def index(self, partition: TopicIdPartition, segment_id: str, kind: IndexKind) -> bytes:
        """As RemoteLogReader.index."""
        return self._run(self._reader.index(partition, segment_id, kind))

    def close(self) -> None:
        """Close the reader and end the thread; repeated calls are harmless. Pending reads get ConfigurationError."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            ending = asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop)
        self._reader.close()
        ending.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        with self._lock:
            if self._is_closed:
                work.close()
                raise _closed()
            waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result()
        except CancelledError:
            raise _closed() from None
        except BaseException:
            waiting.cancel()
            raise

    def _iterate(self, source: AsyncIterator[Result]) -> Generator[Result, None, None]:
        try:
            while True:
                try:
                    yield self._run(_next(source))
                except StopAsyncIteration:
                    return
        finally:
            self._end(source)

    def _end(self, source: AsyncIterator[Any]) -> None:
        """Close an iterator, in any thread: the garbage collector may close one even in that of the loop."""
        with self._lock:
            if self._is_closed:
                return
            closing = asyncio.run_coroutine_threadsafe(_close(source), self._loop)
        if threading.current_thread() is not self._thread:
            with suppress(CancelledError):
                closing.result()


def _closed() -> ConfigurationError:
    return ConfigurationError("this reader of the remote log is closed: open another one")


async def _cancel_all() -> None:
    """Cancel all other tasks in this event loop, and wait for them."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _next(source: AsyncIterator[Result]) -> Result:
    return await anext(source)


async def _close(source: AsyncIterator[Any]) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()
