"""A copy logs in to a real broker by every way there is, from the command line and from Spark's workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from integration.spark_submit import SparkSubmit
from integration.stored_segments import ensure_as_stored
from servers.guarded_kafka import (
    CERTIFIED,
    CLIENT_SECRET,
    READER,
    READS,
    GuardedKafka,
    token_endpoint,
)
from support.command_line import mentions
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite, finished
from support.records import varied_records


@dataclass(frozen=True, slots=True)
class Way:
    """A listener, who a client is there, and the properties (with _ for the dots) that it needs besides."""

    listener: str
    principal: str = READER
    properties: dict[str, str] = field(default_factory=dict)
    shows_certificate: bool = False


WAYS = {
    "plain": Way("SASL"),
    "scram-256": Way("SASL", properties={"sasl_mechanism": "SCRAM-SHA-256"}),
    "scram-512-over-tls": Way("SASLTLS", properties={"sasl_mechanism": "SCRAM-SHA-512"}),
    "certificate": Way("TLS", CERTIFIED, shows_certificate=True),
    "scram-512-and-certificate": Way("MUTUAL", READER, {"sasl_mechanism": "SCRAM-SHA-512"}, shows_certificate=True),
    "token": Way(
        "OAUTH",
        properties={
            "sasl_oauthbearer_method": "oidc",
            "sasl_oauthbearer_client_id": "remote-log",
            "sasl_oauthbearer_client_secret": CLIENT_SECRET,
        },
    ),
}


@pytest.fixture(scope="module")
def token_url() -> Iterator[str]:
    with token_endpoint() as url:
        yield url


def logged_in(guarded_broker: GuardedKafka, folder: Path, topic: str, properties: dict[str, str]) -> LiveSite:
    """Return a remote log of `topic` below `folder`, whose client has these properties."""
    file = folder / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    file.chmod(0o600)
    settings = {"bootstrap.servers": properties["bootstrap.servers"], "cluster.client.properties.file": str(file)}
    return LiveSite(guarded_broker.kafka, folder, (topic,), settings)


@pytest.fixture(params=list(WAYS))
def site(request: pytest.FixtureRequest, guarded_broker: GuardedKafka, token_url: str, tmp_path: Path) -> LiveSite:
    """A remote log of a topic that only one principal may read, which logs in by one of the WAYS."""
    way = WAYS[request.param]
    topic = f"{request.function.__name__.removeprefix('test_')}-{request.param}"
    client = guarded_broker.kafka.client
    client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    guarded_broker.grant(topic, {way.principal: READS})
    client.produce(topic, varied_records(400, seed=1), batch_num_messages=20)
    certificate = guarded_broker.certificate if way.shows_certificate else {}
    endpoint = {"sasl_oauthbearer_token_endpoint_url": token_url} if way.listener == "OAUTH" else {}
    properties = guarded_broker.properties(way.listener, **way.properties, **certificate, **endpoint)
    return logged_in(guarded_broker, tmp_path, topic, properties)


def test_a_copy_logs_in(site: LiveSite) -> None:
    copied = site.copied()

    assert len(copied) > 1
    assert ensure_as_stored(site) == len(copied)
    site.audited()


@pytest.mark.nightly
def test_a_worker_logs_in(site: LiveSite, spark_submit: SparkSubmit) -> None:
    outcomes, _ = spark_submit(site, "runs/first/1")

    with site.open() as remote_log:
        assert len(finished(remote_log)) == len([each for each in outcomes if each.rolled is not None]) > 1
    assert ensure_as_stored(site) > 1
    site.audited()


def test_a_topic_that_the_login_may_not_see_is_named(guarded_broker: GuardedKafka, tmp_path: Path) -> None:
    topic = "out-of-sight"
    guarded_broker.kafka.client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    site = logged_in(guarded_broker, tmp_path, topic, guarded_broker.properties("SASL"))

    for command in ("plan", "copy"):
        result = site.run(command)
        said = " ".join((result.out + result.err).split())
        assert result.exit_code == 0
        assert mentions(said, f"{topic}: ", "settings file", f"--operation Describe --topic {topic}")
    guarded_broker.grant(topic, {READER: READS})
    assert topic not in site.run("copy").err
