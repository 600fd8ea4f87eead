"""A gateway without brokers serves partitions in message formats v0 and v1, as a broker of 2.8 left them."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from golden.older_formats import OLDER_LOGS
from support.command_line import run
from support.gateways import running_gateway
from tiered_storage_airflow.demo_cluster.brokers import free_first_port

SERVED = ("mixed", "v0-lz4", "v1-append-time-gzip")


def test_clients_read_both_tiers_of_older_message_formats(tmp_path: Path) -> None:
    logs, config, port = tmp_path / "kafka-logs", tmp_path / "settings.yaml", free_first_port([0])
    shutil.copytree(OLDER_LOGS.log_dir, logs)
    settings = {
        "state.directory": str(tmp_path / "state"),
        "log.dirs": [str(logs)],
        "gateway.port": port,
        "topics": {topic: {"remote.storage.enable": True} for topic in SERVED},
    }
    config.write_text(yaml.safe_dump(settings))
    copied = run("copy", "--config", config)
    assert copied.exit_code == 0, copied.out + copied.err

    with running_gateway(config, port) as gateway:
        for topic in SERVED:
            expected = OLDER_LOGS.consumed()[f"{topic}-0"].records
            assert gateway.client.consume_all(topic) == expected, topic
            times = [record.timestamp for record in expected if record.timestamp > 0]
            if times:
                found = next(record for record in expected if record.timestamp >= max(times))
                assert gateway.client.offset_for_time(topic, 0, max(times)) == found.offset
