"""Which topics there are, in the log directories and in the remote log, and which partition stands for which name.

Kafka's protocol knows one topic of a name. That is the one in the log directories, or else the one that the remote log
has and nobody deleted. A name with several such incarnations is not served: nothing shows which one a client means.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tiered_storage.errors import TieredStorageError
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.manager import identified
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.partition_log import NamedPartition

_log = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 2.0
"""Seconds that a request waits for a read of the topics before it gets the last ones: the store may hang."""
_AGE_PER_READ: Final = 20
"""Cache topics for at least this many times as long as the read took, so that reading uses at most 5 % of the time."""


@dataclass(frozen=True, slots=True)
class ServedTopic:
    """A topic, and its partitions by their numbers."""

    name: str
    topic_id: bytes
    partitions: Mapping[int, TopicIdPartition]


@dataclass(frozen=True, slots=True)
class Topics:
    """All topics of one moment; `ambiguous` are names of several incarnations."""

    by_name: Mapping[str, ServedTopic]
    by_id: Mapping[bytes, ServedTopic]
    ambiguous: frozenset[str]
    cluster_id: str
    problem: str | None = field(default=None, compare=False)
    """Why the log directories cannot be read; None: they can, or there are none."""

    def find(self, key: str | bytes) -> ServedTopic | None:
        """Return a topic by its name or its id."""
        return self.by_id.get(key) if isinstance(key, bytes) else self.by_name.get(key)


class Catalog:
    """The topics of an open remote log, read again once they are old. For one event loop."""

    def __init__(self, context: RemoteLogContext, now: Callable[[], float] = time.monotonic) -> None:
        """Measure ages by `now` (seconds). Looks at nothing yet."""
        self._context = context
        self._now = now
        self._max_age = context.settings.remote_log_reader_metadata_max_age_ms / 1000
        self._known: Topics | None = None
        self._fresh_until = 0.0
        self._reading: asyncio.Task[Topics] | None = None

    async def topics(self) -> Topics:
        """Return the topics, read again once they are old.

        If a later read fails or takes long, it returns the topics of the last read. It raises errors of a first read.
        """
        if self._known is not None and self._now() < self._fresh_until:
            return self._known
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read())
        if self._known is not None:
            await asyncio.wait({self._reading}, timeout=_WAIT_SECONDS)
            if not self._reading.done():
                return self._known
        return await asyncio.shield(self._reading)

    async def _read(self) -> Topics:
        begun = self._now()
        try:
            found = await asyncio.to_thread(read_topics, self._context)
        except TieredStorageError as error:
            if self._known is None:
                raise
            _log.warning("topics cannot be read, so those of the last read are served: %s", error)
            # Repeat a failed read soon, however long it took.
            self._fresh_until = self._now() + self._max_age
            return self._known
        self._fresh_until = self._now() + max(self._max_age, _AGE_PER_READ * (self._now() - begun))
        self._report(found)
        self._known = found
        return found

    def _report(self, found: Topics) -> None:
        known = self._known
        if found.problem is not None and (known is None or known.problem != found.problem):
            _log.warning("only what is remote is served: %s", found.problem)
        for name in found.ambiguous - (known.ambiguous if known else frozenset()):
            _log.error(
                "topic %s is not served: there are several of that name: 'tiered-storage topics list' shows them, and "
                "'tiered-storage delete-topic' deletes one that you do not need",
                name,
            )


def read_topics(context: RemoteLogContext) -> Topics:
    """Read all topics now. Raises what the metadata store raises."""
    states = context.segments.partition_states()
    remote = list(context.segments.list_partitions())
    local, problem = _local(context, remote)
    known = [each for each in remote if (state := states.get(each)) is None or state.delete_state is None]
    topics, ambiguous = named_topics(local, known)
    clusters = {each.cluster_id for topic in topics.values() for each in topic.partitions.values()}
    return Topics(
        topics,
        {each.topic_id: each for each in topics.values()},
        ambiguous,
        context.settings.cluster_id or (clusters.pop() if len(clusters) == 1 else "remote-log"),
        problem,
    )


def _local(context: RemoteLogContext, remote: Iterable[TopicIdPartition]) -> tuple[list[TopicIdPartition], str | None]:
    """Return the partitions in the log directories, or why they cannot be read."""
    if not context.source.is_configured:
        return [], None
    try:
        names = list(context.source.names())
    except (TieredStorageError, OSError) as error:
        return [], str(error)
    return [identified(each, remote) for each in names if isinstance(each, NamedPartition)], None


def named_topics(
    local: Iterable[TopicIdPartition], remote: Iterable[TopicIdPartition]
) -> tuple[dict[str, ServedTopic], frozenset[str]]:
    """Return the topic of each name, and the names of several."""
    in_logs, everywhere = _incarnations(local), _incarnations([*remote, *local])
    topics, ambiguous = {}, set()
    for name, incarnations in everywhere.items():
        wanted = in_logs.get(name) or incarnations
        if len(wanted) > 1:
            ambiguous.add(name)
            continue
        [key] = wanted
        topics[name] = ServedTopic(name, decode_uuid(key[1]), dict(sorted(incarnations[key].items())))
    return topics, frozenset(ambiguous)


def _incarnations(
    partitions: Iterable[TopicIdPartition],
) -> dict[str, dict[tuple[str, str], dict[int, TopicIdPartition]]]:
    """Return the partitions by the name of their topic, the ids of their cluster and their topic, and their number."""
    found: dict[str, dict[tuple[str, str], dict[int, TopicIdPartition]]] = defaultdict(lambda: defaultdict(dict))
    for each in partitions:
        found[each.topic][each.cluster_id, each.topic_id][each.partition] = each
    return found
