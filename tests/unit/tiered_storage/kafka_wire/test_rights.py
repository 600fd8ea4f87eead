"""The rights of a login: what brokers are asked, and what their answers mean."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from support.command_line import mentions
from tiered_storage.errors import ClusterRefusedError, ClusterUnreachableError, MalformedAnswerError
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import APIS, DESCRIBE_CLUSTER, METADATA
from tiered_storage.kafka_wire.connections.connection import open_connection
from tiered_storage.kafka_wire.connections.transport import Deadline
from tiered_storage.kafka_wire.rights import (
    ClusterRights,
    Right,
    describe_cluster_request,
    read_cluster_rights,
    rights_of,
)
from unit.tiered_storage.kafka_wire.scripted_broker import Asked
from unit.tiered_storage.kafka_wire.scripted_cluster import NOT_ASKED, Scripted, served

DESCRIBE_ALONE = 0b1_0000_0000


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        (0, set()),
        (DESCRIBE_ALONE, {Right.DESCRIBE}),
        (0b1000, {Right.READ}),
        (0b100_0000, {Right.DELETE}),
        (0x7FFF_FFFF, {Right.READ, Right.DELETE, Right.DESCRIBE}),
        (NOT_ASKED, set()),
        (NOT_ASKED | DESCRIBE_ALONE, set()),
    ],
)
def test_each_right_is_a_bit_and_a_negative_field_means_none(operations: int, expected: set[Right]) -> None:
    assert rights_of(operations) == expected


@pytest.mark.parametrize("latest", range(DESCRIBE_CLUSTER.oldest, DESCRIBE_CLUSTER.latest + 1))
def test_the_rights_on_the_cluster_are_asked_for_in_every_version(latest: int) -> None:
    ranges = {each.key: (0, each.latest) for each in APIS} | {DESCRIBE_CLUSTER.key: (0, latest)}
    scripted = Scripted(operations=DESCRIBE_ALONE)
    with served(scripted, ranges) as cluster:
        assert cluster.cluster_rights() == ClusterRights("lab", frozenset({Right.DESCRIBE}))
    assert [asked.version for _, asked in scripted.asked] == [latest]


@pytest.mark.parametrize("latest", range(METADATA.oldest, METADATA.latest + 1))
def test_the_rights_on_topics_come_with_their_metadata_if_they_are_asked_for(latest: int) -> None:
    ranges = {each.key: (0, each.latest) for each in APIS} | {METADATA.key: (0, latest)}
    with served(Scripted(operations=DESCRIBE_ALONE), ranges) as cluster:
        assert cluster.metadata(["orders"], with_rights=True).topics["orders"].rights == {Right.DESCRIBE}
        assert cluster.metadata(["orders"]).topics["orders"].rights == set()


def test_an_error_that_passes_differs_from_a_refusal_and_both_have_a_name() -> None:
    scripted = Scripted(fails={(1, DESCRIBE_CLUSTER.key, 0): [7, 31]}, operations=DESCRIBE_ALONE)
    with served(scripted) as cluster:
        with pytest.raises(ClusterRefusedError, match=r"CLUSTER_AUTHORIZATION_FAILED \(31\)"):
            cluster.cluster_rights()
        # After the first error the broker was asked again.
        assert scripted.keys() == [(1, DESCRIBE_CLUSTER.key)] * 2
        assert cluster.cluster_rights().rights == {Right.DESCRIBE}
        scripted.fails = {(1, DESCRIBE_CLUSTER.key, 0): [7] * 1000}
        with pytest.raises(ClusterUnreachableError, match="REQUEST_TIMED_OUT"):
            cluster.cluster_rights(seconds=0.3)


def test_a_broker_that_does_not_offer_the_request_is_refused_by_its_name() -> None:
    ranges = {each.key: (0, each.latest) for each in APIS if each is not DESCRIBE_CLUSTER}
    with served(Scripted(), ranges) as cluster, pytest.raises(ClusterRefusedError) as refused:
        cluster.cluster_rights()
    assert mentions(str(refused.value), cluster.settings.bootstrap[0], "does not offer DescribeCluster")


@dataclass
class Garbled(Scripted):
    """Its first answers to DescribeCluster, so many `times`, lack their last bytes, though their size is right."""

    times: int = 1000

    def answer(self, node: int, asked: Asked) -> bytes | None:
        frame = super().answer(node, asked)
        if frame is None or asked.key != DESCRIBE_CLUSTER.key or not self.times:
            return frame
        self.times -= 1
        return (len(frame) - 6).to_bytes(4, "big") + frame[4:-2]


def exchanged(cluster: ClusterClient) -> ClusterRights:
    deadline = Deadline.after(30)
    connection = open_connection(cluster.settings.bootstrap[0], cluster.settings, deadline)
    message = describe_cluster_request(connection.version(DESCRIBE_CLUSTER))
    return connection.exchange(DESCRIBE_CLUSTER, message, deadline, read_cluster_rights)


def test_a_garbled_answer_is_malformed_and_names_its_broker() -> None:
    with served(Garbled(operations=DESCRIBE_ALONE)) as cluster:
        words = (cluster.settings.bootstrap[0], "DescribeCluster", "announced")
        with pytest.raises(MalformedAnswerError) as malformed:
            exchanged(cluster)
        assert mentions(str(malformed.value), *words)
        with pytest.raises(ClusterUnreachableError) as unreachable:
            cluster.cluster_rights(seconds=0.3)
        assert mentions(str(unreachable.value), *words)


def test_an_answer_that_is_garbled_once_is_asked_for_again() -> None:
    scripted = Garbled(operations=DESCRIBE_ALONE, times=1)
    with served(scripted) as cluster:
        assert cluster.cluster_rights().rights == {Right.DESCRIBE}
    assert len(scripted.keys()) == 2
