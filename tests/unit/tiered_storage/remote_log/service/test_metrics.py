from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from support.remote_logs import ORDERS_0, a_remote_log, partition_of
from support.scraping import KAFKA_REMOTE, Scrape
from tiered_storage.remote_log.service.schedule import Role, TaskKind
from tiered_storage.remote_log.service.service import RemoteLogService, ServiceMetrics


def test_the_metrics_show_pools_tasks_and_partitions(tmp_path: Path) -> None:
    with a_remote_log(tmp_path, remote_log_manager_copier_thread_pool_size=4).open() as remote_log:
        service = RemoteLogService(remote_log, "service", follow=lambda _: None)
        service.assign(ORDERS_0, Role.LEADER)
        service.assign(partition_of("orders", 1), Role.FOLLOWER)
        assert service.pools[TaskKind.FOLLOW].run_due()
        service.pools[TaskKind.COPY]._count(1)
        registry = CollectorRegistry()
        registry.register(ServiceMetrics(service))

        found = Scrape.of(generate_latest(registry).decode())

    assert found.value(f"{KAFKA_REMOTE}remotelogmanagertasksavgidlepercent") == 0.75
    assert found.value("remote_log_service_idle_ratio", pool="expiration") == 1
    assert found.value("remote_log_service_tasks_total", pool="follower", outcome="done") == 1
    assert found.value("remote_log_service_tasks_total", pool="copier", outcome="failed") == 0
    assert found.value("remote_log_service_failing_partitions", pool="copier") == 0
    assert (found.value("remote_log_service_late_seconds", pool="copier") or 0) > 0
    assert found.value("remote_log_service_partitions", role="leader") == 1
    assert found.value("remote_log_service_partitions", role="follower") == 1
    assert found.value("remote_log_service_hung_copies_total") == 0
