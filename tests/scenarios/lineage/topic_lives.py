"""A partition's lives with the metadata of its segments in a topic."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from scenarios.lineage.lineage_lives import LineageLives
from scenarios.lineage.partition_lives import STEPS
from support.metadata_stores import topic_options
from support.remote_logs import CLUSTER_ID, SEGMENT_BYTES, unsynced
from support.simulated_crashes import dies_at
from support.topic_brokers import SERVERS, MemoryTopic
from tiered_storage.errors import MetadataUnavailableError
from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId
from tiered_storage.remote_log.metadata.topic.cluster.metadata_writer import MetadataWriter
from tiered_storage.remote_log.rebuild.metadata_places import move_segments
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.settings.own_managers import KAFKAS_METADATA_MANAGER


class TopicLives(LineageLives):
    """The rules of a metadata topic, which real brokers at `servers` have, or else this process."""

    def __init__(self, servers: str | None = None) -> None:
        super().__init__()
        self.servers = servers or SERVERS
        self.numbers = count(1)
        self.patches = pytest.MonkeyPatch()
        self.memory = MemoryTopic(MetadataTopicId(CLUSTER_ID, "", "", 3))
        if servers is None:
            self.memory.give(self.patches)
        self.use_another_topic()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.patches.undo()

    def use_another_topic(self) -> None:
        """Set the options of a new topic."""
        options = topic_options(self.servers, self.root)
        name = f"{options['remote.log.metadata.topic.name']}-{next(self.numbers)}"
        options["remote.log.metadata.topic.name"] = name
        self.files.properties |= {f"rlmm.config.{option}": value for option, value in options.items()}
        self.files.properties["remote.log.metadata.manager.class.name"] = KAFKAS_METADATA_MANAGER
        self.memory.create(name)

    def use_the_database(self) -> None:
        """Remove the options of the topic."""
        for name in [each for each in self.files.properties if each.startswith("rlmm.config.remote.log.metadata.")]:
            del self.files.properties[name]
        del self.files.properties["remote.log.metadata.manager.class.name"]

    def rebuild(self) -> None:
        """Rebuild them in the database, as only that is possible, and move them into another topic."""
        self.use_the_database()
        super().rebuild()
        self.use_another_topic()
        move_segments(self.files.settings(), self.files.clock, into_topic=True)

    @rule(step=st.none() | STEPS, after_it=st.booleans())
    def move_the_metadata(self, step: int | None, after_it: bool) -> None:
        """Move the segments into the database, and into another topic; a killed move is repeated."""
        with unsynced():
            with self.open() as remote_log:
                self.let_leases_end(remote_log)
            move_segments(self.files.settings(), self.files.clock, into_topic=False)
            self.use_another_topic()
            settings = self.files.settings()
            if step is not None:
                done = False
                with dies_at(step, after_it=after_it):
                    move_segments(settings, self.files.clock, into_topic=True)
                    done = True
                if done:
                    return
            move_segments(settings, self.files.clock, into_topic=True)

    @rule()
    def lose_the_cache(self) -> None:
        shutil.rmtree(self.root / "metadata-topic")

    @rule(write=st.integers(0, 4), is_written=st.booleans(), kept=st.none() | st.integers(1, 8))
    def work_while_the_brokers_fail(self, write: int, is_written: bool, kept: int | None) -> None:
        """Copy or expire; one write and all after it are not acknowledged, though the first may be written."""
        self.was_killed = True
        self.retention(total=-1 if kept is None else kept * SEGMENT_BYTES)
        with unsynced(), self.open() as remote_log:
            failing = mock.patch.object(MetadataWriter, "write", _failing(write, is_written=is_written))
            with failing, suppress(MetadataUnavailableError):
                if kept is None:
                    remote_log.commit_copy(self.copy_with(remote_log, f"unlucky {self.runs}"))
                else:
                    plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, self.files.clock.now)
                    remote_log.deletions.mark_expired(plans, "unlucky")
                    remote_log.deletions.delete_marked("unlucky")
            self.let_leases_end(remote_log)

    @rule(write=st.integers(0, 4), is_written=st.booleans(), kept=st.none() | st.integers(1, 8))
    def overtake(self, write: int, is_written: bool, kept: int | None) -> None:
        """End a run's lease just before or after one of its writes; another run does what is due meanwhile."""
        self.retention(total=-1 if kept is None else kept * SEGMENT_BYTES)
        with unsynced(), self.open() as remote_log:
            slow = mock.patch.object(MetadataWriter, "write", self._overtaken(write, is_written=is_written))
            with slow:
                remote_log.commit_copy(self.copy_with(remote_log, f"overtaken {self.runs}"))
            self.let_leases_end(remote_log)

    def _overtaken(self, write: int, *, is_written: bool) -> Callable[..., list[int]]:
        """Return a substitute for MetadataWriter.write: another run comes between at the call of that number."""
        real: Callable[..., list[int]] = MetadataWriter.write
        calls = count()

        def writing(*arguments: Any) -> list[int]:
            is_now = next(calls) == write
            if is_now and not is_written:
                self._work_meanwhile()
            found = real(*arguments)
            if is_now and is_written:
                self._work_meanwhile()
            return found

        return writing

    def _work_meanwhile(self) -> None:
        with self.open() as remote_log:
            self.let_leases_end(remote_log)
            assert remote_log.commit_copy(self.copy_with(remote_log, f"overtakes {self.runs}")).is_whole
            self.expire_with(remote_log, deletes=True)


def _failing(write: int, *, is_written: bool) -> Callable[..., list[int]]:
    """Return a substitute for MetadataWriter.write that fails from the call of that number on, from 0."""
    real: Callable[..., list[int]] = MetadataWriter.write
    calls = count()

    def writing(*arguments: Any) -> list[int]:
        number = next(calls)
        if number < write:
            return real(*arguments)
        if number == write and is_written:
            real(*arguments)
        raise MetadataUnavailableError("the brokers did not acknowledge it")

    return writing
