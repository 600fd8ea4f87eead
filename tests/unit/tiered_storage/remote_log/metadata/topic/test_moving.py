"""Verifying a metadata topic that is written meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count

import pytest

from tiered_storage.errors import MetadataUnavailableError
from tiered_storage.remote_log.metadata.topic.cache import write_next_offset
from tiered_storage.remote_log.metadata.topic.moving import verify_topic
from tiered_storage.remote_log.metadata.topic.store import TopicMetadataStore
from tiered_storage.remote_log.metadata.topic.topic_state import TopicState


def test_a_topic_that_is_written_faster_than_it_is_read_is_not_compared(
    topic_metadata: TopicMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two caches up to different offsets differ, and nothing is wrong with the topic."""
    ends = count(1)

    def catch_up(state: TopicState, _: Collection[int] | None = None) -> None:
        with state.cache.database.writing() as connection:
            write_next_offset(connection, 0, next(ends))

    monkeypatch.setattr(TopicState, "catch_up", catch_up)

    with pytest.raises(MetadataUnavailableError, match="arrive faster than they are read"):
        verify_topic(topic_metadata)


def test_a_topic_that_nobody_writes_is_intact(topic_metadata: TopicMetadataStore) -> None:
    assert verify_topic(topic_metadata).segments == 0
