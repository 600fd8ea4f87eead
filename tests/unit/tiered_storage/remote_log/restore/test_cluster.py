from __future__ import annotations

from collections.abc import Iterable

import pytest

from tiered_storage.remote_log.restore.cluster import settled_ends
from tiered_storage.remote_log.restore.target_cluster import TargetCluster, TargetTopic


class LaggingCluster(TargetCluster):
    """Its high watermark goes on once a follower that lags has been waited for, `waited` seconds in all."""

    waited: float = 0

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        assert topic == "orders"
        return dict.fromkeys(partitions, (0, 9 if LaggingCluster.waited > 45 else 3))


@pytest.mark.parametrize(("replicas", "end", "most"), [(3, 9, 120), (1, 3, 1)])
def test_a_follower_that_lags_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, replicas: int, end: int, most: float
) -> None:
    monkeypatch.setattr(LaggingCluster, "waited", 0)

    def sleep(seconds: float) -> None:
        LaggingCluster.waited += seconds

    topic = TargetTopic("cluster", "id", "orders", 2, {}, replicas)
    assert settled_ends(LaggingCluster("nowhere:1", {}), topic, [0, 1], sleep) == {0: (0, end), 1: (0, end)}
    assert LaggingCluster.waited <= most
