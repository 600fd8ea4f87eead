"""Check a gateway end to end: send a record through it, and read that and an old remote one back, as any client does.

It needs a topic of its own, the canary topic: its record is sent to partition 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiered_storage.errors import ClusterUnreachableError, TargetClusterError
from tiered_storage.remote_log.restore.target_cluster import ANSWER_SECONDS, TargetCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITION = 0


@dataclass(frozen=True, slots=True)
class Canary:
    """The topic that a gateway is checked with. `properties` are the cluster's client's, by librdkafka's names."""

    gateway: str
    brokers: str
    topic: str
    properties: Mapping[str, str]

    def check(self, value: bytes, remote_start: int | None) -> list[str]:
        """Check the gateway, and return what was checked. The record that is sent has `value`, which no other has.

        `remote_start` is where the topic's remote log begins by the metadata, None if nothing is remote. Raises
        ClusterUnreachableError, which names what failed, where, and what to do, and ConfigurationError.
        """
        others = {name: text for name, text in self.properties.items() if name != "bootstrap.servers"}
        through, beside = TargetCluster(self.gateway, others), TargetCluster(self.brokers, others)
        with self._step("send a record to"):
            offset = self._sent(through, value)
        with self._step(f"read offset {offset} of"):
            self._read(through, offset, value)
        with self._step("find the first offset of"):
            first = through.ends(self.topic, [PARTITION])[PARTITION][0]
            local_start = beside.ends(self.topic, [PARTITION])[PARTITION][0]
        checked = [f"a record was sent to offset {offset} and read back"]
        if remote_start is None or remote_start >= local_start:
            return [*checked, "no old record was read: nothing is remote that the broker does not have"]
        with self._step(f"read offset {remote_start}, which is only remote, of"):
            if first > remote_start:
                raise TargetClusterError(f"it shows {first} as the first offset")
            self._read(through, remote_start)
        return [*checked, f"offset {remote_start} was read, which is only remote"]

    def _sent(self, gateway: TargetCluster, value: bytes) -> int:
        offsets: list[int] = []
        failures: list[str] = []

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                offsets.append(message.offset())
            else:
                failures.append(error.str())

        producer = gateway.producer("none")
        producer.produce(self.topic, value, partition=PARTITION, on_delivery=delivered)
        producer.flush(ANSWER_SECONDS)
        if not offsets:
            raise TargetClusterError(failures[0] if failures else f"no answer in {ANSWER_SECONDS} seconds")
        return offsets[0]

    def _read(self, gateway: TargetCluster, offset: int, value: bytes | None = None) -> None:
        found = next(gateway.records(self.topic, PARTITION, offset, offset + 1), None)
        if found is None or found.offset != offset or value not in {None, found.value}:
            raise TargetClusterError("another record is there" if found else "no record is there")

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        try:
            yield
        except TargetClusterError as error:
            raise ClusterUnreachableError(
                f"the gateway at {self.gateway} fails: it cannot {what} {self.topic}-{PARTITION}: {error}. Look at its "
                "page /ready (gateway.metrics.port) and its log; if the topic is missing, create it; if the gateway "
                "does not run, start it"
            ) from error
