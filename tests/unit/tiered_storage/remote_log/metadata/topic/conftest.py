"""A metadata store with an empty topic, whose brokers a test lets answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clocks import ManualClock
from support.metadata_stores import topic_options, topic_store
from support.topic_brokers import SERVERS, Answers
from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId
from tiered_storage.remote_log.metadata.topic.store import TopicMetadataStore


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """The answers of the brokers of `topic_metadata`."""
    name = topic_options(SERVERS, tmp_path)["remote.log.metadata.topic.name"]
    found = Answers(MetadataTopicId("cluster-1", name, "topic-id-of-metadataAA", 3))
    found.give(monkeypatch)
    return found


@pytest.fixture
def topic_metadata(answers: Answers, tmp_path: Path, clock: ManualClock) -> Iterator[TopicMetadataStore]:
    """A store that found its topic."""
    with topic_store(SERVERS, tmp_path, clock) as opened:
        assert opened.state.topic == answers.topic
        yield opened
