"""The cache of a metadata topic."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId
from tiered_storage.remote_log.metadata.topic import cache
from tiered_storage.remote_log.metadata.topic.cache import SegmentCache, write_next_offset

TOPIC = MetadataTopicId("cluster-1", "metadata", "topic-id-of-metadataAA", 3)


@pytest.mark.parametrize(("version", "later"), [("CACHE_VERSION", 99), ("SCHEMA_VERSION", "9999")])
def test_a_cache_whose_tables_have_another_version_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, later: object
) -> None:
    """After an upgrade, the tables of segments may lack a column."""
    with closing(SegmentCache(tmp_path, TOPIC, 1_000)) as before, before.database.writing() as connection:
        write_next_offset(connection, 0, 7)
    with closing(SegmentCache(tmp_path, TOPIC, 1_000)) as same:
        assert same.consumed() == {0: 7}

    monkeypatch.setattr(cache, version, later, raising=False)

    with closing(SegmentCache(tmp_path, TOPIC, 1_000)) as after:
        assert after.consumed() == {}
