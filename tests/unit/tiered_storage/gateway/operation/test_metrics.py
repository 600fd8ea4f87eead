"""Who reads old data, how long it takes, and what caches and memory do, as Prometheus sees them."""

from __future__ import annotations

from collections.abc import Mapping

from tiered_storage.gateway.limits.client_quotas import ClientName
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.remote_log.read.chunks.remote_chunks import ChunkCounts

PREFIX = "remote_log_gateway_"
MOST = 500


def shown(metrics: GatewayMetrics, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a metric, by the values of their labels, except the buckets of histograms."""
    return {
        tuple(each.labels.values()): each.value
        for metric in metrics.collect()
        for each in metric.samples
        if each.name == f"{PREFIX}{name}"
    }


def test_who_reads_old_data_of_which_topic_and_how_long_that_takes() -> None:
    metrics = GatewayMetrics()
    reports = ClientName("ann", "reports")

    for topic, size, seconds in (("orders", 100, 0.25), ("orders", 20, 0.5), ("clicks", 3, 1.0)):
        metrics.waited(topic, reports, seconds)
        metrics.served(topic, reports, size)
    metrics.served("orders", ClientName("", "replay"), 7)

    assert shown(metrics, "client_remote_bytes_total") == {
        ("ann", "reports", "orders"): 120,
        ("ann", "reports", "clicks"): 3,
        ("", "replay", "orders"): 7,
    }
    assert shown(metrics, "remote_bytes_total") == {("orders",): 127, ("clicks",): 3}
    assert shown(metrics, "remote_fetches_total") == {("orders",): 3, ("clicks",): 1}
    assert shown(metrics, "remote_fetch_seconds_sum") == {("orders",): 0.75, ("clicks",): 1.0}
    assert shown(metrics, "client_remote_fetch_seconds_count") == {("ann", "reports"): 3}


def test_clients_that_name_themselves_anew_make_no_series_without_end() -> None:
    metrics = GatewayMetrics()

    for number in range(MOST + 20):
        client = ClientName("ann", f"{number}-{'x' * 1000}")
        metrics.served("orders", client, 1)
        metrics.waited("orders", client, 0.1)
    # A client that was there before keeps its own.
    metrics.served("orders", ClientName("ann", f"0-{'x' * 1000}"), 1)

    sizes = shown(metrics, "client_remote_bytes_total")
    counts = shown(metrics, "client_remote_fetch_seconds_count")
    assert (len(sizes), sizes["other", "other", "other"]) == (MOST + 1, 20)
    assert (len(counts), counts["other", "other"]) == (MOST + 1, 20)
    assert sorted(set(sizes.values())) == [1, 2, 20]
    assert max(len(label) for labels in sizes for label in labels) == 100


def test_caches_reads_ahead_and_waits_for_memory_are_shown() -> None:
    metrics, counts, budget = GatewayMetrics(), ChunkCounts(), MemoryBudget(100)
    metrics.show_chunks(counts)
    metrics.show_memory(budget)
    counts.hits, counts.misses, counts.wasted_bytes = 5, 3, 4096
    # One connection may take more than there is, and the next one waits.
    for size in (90, 30, 5):
        budget.account().take(size, lambda: None)

    found: Mapping[str, float] = {
        name: value
        for name in (
            *("chunk_cache_hits_total", "chunk_cache_misses_total", "read_ahead_wasted_bytes_total"),
            *("memory_used_bytes", "memory_limit_bytes", "memory_waits_total"),
        )
        for value in shown(metrics, name).values()
    }

    assert found == {
        "chunk_cache_hits_total": 5,
        "chunk_cache_misses_total": 3,
        "read_ahead_wasted_bytes_total": 4096,
        "memory_used_bytes": 120,
        "memory_limit_bytes": 100,
        "memory_waits_total": 1,
    }
