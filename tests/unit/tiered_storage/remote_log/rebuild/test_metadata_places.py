"""What the commands say about metadata that have no topic yet."""

from __future__ import annotations

from pathlib import Path

from support.clocks import ManualClock
from support.metadata_stores import topic_store
from tiered_storage.remote_log.rebuild.metadata_places import NO_TOPIC, metadata_status, verified

NOBODY = "127.0.0.1:1"


def test_looking_creates_no_metadata_topic(tmp_path: Path) -> None:
    with topic_store(NOBODY, tmp_path, ManualClock(), consume_wait_ms=1_000) as store:
        assert metadata_status(store).where == NO_TOPIC
        assert verified(store).where == NO_TOPIC
        assert store.lacks_its_topic
