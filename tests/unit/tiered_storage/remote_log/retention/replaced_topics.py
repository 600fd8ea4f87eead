"""A running cluster, in place of log directories, that shows topics with other ids than the remote log has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tiered_storage.kafka_wire.topic_configs import TopicConfigs
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.retention import topic_deletion
from tiered_storage.remote_log.source.opening import CLUSTER
from tiered_storage.remote_log.source.partition_log import NamedPartition


def show_created_again(
    monkeypatch: pytest.MonkeyPatch,
    remote_log: RemoteLogManager,
    again: Sequence[TopicIdPartition],
    unchanged: Sequence[TopicIdPartition] = (),
) -> None:
    """Let the source name partitions as a cluster does, those of `again` under new topic ids."""
    shown = [*unchanged, *(replace(each, topic_id=f"new{each.topic_id[3:]}") for each in again)]
    configs = TopicConfigs.of({})
    named = [NamedPartition(each, "at a broker", False, False, False, False, configs=configs) for each in shown]
    monkeypatch.setattr(topic_deletion, "CLUSTER", replace(CLUSTER, is_named=lambda _: True))
    monkeypatch.setattr(type(remote_log.context.source), "names", lambda _: iter(named))
