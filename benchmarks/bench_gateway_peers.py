"""Measures remote reads through the gateway against Kafka's own tiering, and Kafka's performance consumer on both.

Two brokers have the same records: one beside the gateway, and one that tiers them itself to a directory on the same
disk (LocalTieredStorage). librdkafka and Java's performance consumer read them remotely through the gateway, and
remotely from the tiering broker; Java reads them from the first broker too, directly and through the gateway.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, chdir
from typing import TYPE_CHECKING

from bench_export import PARTITIONS, produce
from bench_gateway import READ, SEGMENT_BYTES, goal_of, read_rate, show
from measuring import judge
from one_broker import arguments, one_broker

from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage_airflow.demo_cluster.brokers import free_first_port
from tiered_storage_airflow.embedded.environment import PROJECT_ROOT

if TYPE_CHECKING:
    from servers.real_kafka import RealKafka

GOAL_OF_DIRECT = 0.85
GOAL_OF_TIERING = 1.5
TIERS_WITHIN_SECONDS = 300.0
TIERED = {"segment.bytes": str(SEGMENT_BYTES), "remote.storage.enable": "true", "local.retention.bytes": "1"}


def java_rate(kafka: RealKafka, servers: str, records: int) -> float:
    """Read so many records of READ by Java's performance consumer; return bytes a second while it fetched."""
    out = kafka.tool(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", servers, "--topic", READ, "--num-records", str(records)),
        *("--timeout", "60000", "--hide-header"),
    )
    fields = out.splitlines()[-1].split(", ")
    megabytes, milliseconds = float(fields[2]), float(fields[7])
    return megabytes * (1 << 20) / (milliseconds / 1000)


def local_starts(kafka: RealKafka) -> list[int]:
    """Return the first offset that the broker's files have of each partition."""
    return [list_segments(kafka.log_dir / f"{READ}-{number}")[0].base_offset for number in range(PARTITIONS)]


def wait_until_tiered(kafka: RealKafka) -> list[int]:
    """Wait until the broker's files have nothing but active segments; return where these begin."""
    end = time.monotonic() + TIERS_WITHIN_SECONDS
    while any(len(list_segments(kafka.log_dir / f"{READ}-{number}")) > 1 for number in range(PARTITIONS)):
        if time.monotonic() > end:
            raise SystemExit(f"the broker did not tier all within {TIERS_WITHIN_SECONDS:.0f} s: nothing was measured")
        time.sleep(0.5)
    return local_starts(kafka)


def main() -> int:
    """Measure; return 1 if a goal was missed."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=600, help="of records to read")
    given = parser.parse_args()
    size = given.megabytes << 20
    rates: dict[str, list[float]] = {}

    def note(name: str, rate: float) -> None:
        rates.setdefault(name, []).append(rate)

    with ExitStack() as running:
        root, kafka = running.enter_context(one_broker(given.directory.resolve(), "gateway-peers-"))
        # The jar of LocalTieredStorage has settings by which every program with it logs to a file in its directory.
        running.enter_context(chdir(root))
        from servers.tiering_kafka import local_tiering_kafka  # noqa: PLC0415 - the path to it is made by one_broker
        from support.gateways import copied_and_trimmed, running_gateway  # noqa: PLC0415 - as above
        from support.live_sites import LiveSite, remote_ends  # noqa: PLC0415 - as above

        peer = local_tiering_kafka(kafka.programs, root / "tiering", PROJECT_ROOT / ".state")
        tiering = running.enter_context(peer)
        for each, config in ((kafka, {"segment.bytes": str(SEGMENT_BYTES)}), (tiering, TIERED)):
            each.client.create_topic(READ, PARTITIONS, config)
            produce(each.bootstrap_servers, size, READ)
        tiered = wait_until_tiered(tiering)
        site = LiveSite(kafka, root, (READ,), {"gateway.port": free_first_port([1])})
        while site.copied("--topics", READ):
            pass
        copied = remote_ends(site, READ)
        ends = {number: min(copied[number], tiered[number]) for number in range(PARTITIONS)}
        gateway = running.enter_context(running_gateway(site.config, site.settings["gateway.port"]))
        # The broker compiles what it runs often.
        java_rate(kafka, kafka.bootstrap_servers, sum(ends.values()))
        for _ in range(given.rounds):
            note("Java, direct local", java_rate(kafka, kafka.bootstrap_servers, sum(ends.values())))
            note("Java, local through the gateway", java_rate(kafka, gateway.bootstrap_servers, sum(ends.values())))
        for number in range(PARTITIONS):
            copied_and_trimmed(site, READ, number)
        java_rate(kafka, tiering.bootstrap_servers, sum(ends.values()))
        for _ in range(given.rounds):
            note("Java, remote through the gateway", java_rate(kafka, gateway.bootstrap_servers, sum(ends.values())))
            note("Java, remote from Kafka's tiering", java_rate(kafka, tiering.bootstrap_servers, sum(ends.values())))
            note("librdkafka, remote through the gateway", read_rate(gateway.bootstrap_servers, ends))
            note("librdkafka, remote from Kafka's tiering", read_rate(tiering.bootstrap_servers, ends))
    show(rates)
    direct, tiers = "direct local", "LocalTieredStorage"
    java, librdkafka = rates["Java, remote through the gateway"], rates["librdkafka, remote through the gateway"]
    return judge(
        [
            goal_of("Java: remote through the gateway", java, rates["Java, direct local"], GOAL_OF_DIRECT, direct),
            goal_of(
                "Java: local through the gateway",
                rates["Java, local through the gateway"],
                rates["Java, direct local"],
                GOAL_OF_DIRECT,
                direct,
            ),
            goal_of(
                "Java: remote, of Kafka's tiering",
                java,
                rates["Java, remote from Kafka's tiering"],
                GOAL_OF_TIERING,
                tiers,
            ),
            goal_of(
                "librdkafka: remote, of Kafka's tiering",
                librdkafka,
                rates["librdkafka, remote from Kafka's tiering"],
                GOAL_OF_TIERING,
                tiers,
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
