"""gateway_health: a real gateway in front of a real broker, as the DAG checks it, and its message once it has ended."""

from __future__ import annotations

import pytest
import yaml

from dags.airflow_runs import AirflowHome
from servers.real_kafka import RealKafka
from support.command_line import mentions
from support.gateways import copied_and_trimmed, running_gateway
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite
from support.records import varied_records
from support.tiered_site import TieredSite
from tiered_storage_airflow.demo_cluster.brokers import free_first_port

TOPIC = "gateway-canary"


@pytest.mark.nightly
def test_a_run_reads_old_and_new_records_through_the_gateway_and_fails_without_it(
    airflow: AirflowHome, site: TieredSite, real_kafka: RealKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_first_port([1])
    live = LiveSite(real_kafka, site.root, (TOPIC,), {"gateway.port": port, "gateway.canary.topic": TOPIC})
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(live.config))
    airflow.refresh()
    client = real_kafka.client
    client.create_topic(TOPIC, 1, SMALL_SEGMENTS | LONG)
    client.produce(TOPIC, varied_records(400, seed=1), batch_num_messages=20)
    assert live.copied()

    with running_gateway(live.config, port):
        new = airflow.run("gateway_health")
        assert new.state == "success", new.messages
        assert "nothing is remote" in new.log

        copied_and_trimmed(live, TOPIC)
        run = airflow.run("gateway_health")
        assert run.state == "success", run.messages
        assert mentions(run.log, "offset 401", "read back", "offset 0", "only remote")

    settings = yaml.safe_load(live.config.read_text())
    live.config.write_text(yaml.safe_dump({**settings, "gateway.port": free_first_port([1])}))
    monkeypatch.setattr("tiered_storage.remote_log.restore.target_cluster.DELIVERY_SECONDS", 2)
    monkeypatch.setattr("tiered_storage.gateway.operation.canary.ANSWER_SECONDS", 4)
    red = airflow.run("gateway_health")
    assert red.state == "failed"
    assert mentions(red.messages, "cannot send", f"{TOPIC}-0", "start it")
