"""A gateway as users run it: `tiered-storage gateway` in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.kafka_clients import RealKafkaClient
from support.live_sites import LiveSite, remote_ends
from support.waiting import wait_for

START_SECONDS = 150
STOP_SECONDS = 60
_PROGRAM = Path(sys.executable).with_name("tiered-storage")
_READY = "the gateway serves"


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway whose first port is `port`; `log` is the file that it writes to."""

    port: int
    log: Path
    process: subprocess.Popen[bytes]
    killed: threading.Event = field(default_factory=threading.Event)
    """Set once a test has killed it."""

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        """End it at once, as a lost machine would."""
        self.killed.set()
        self.process.kill()
        self.process.wait()

    @property
    def client(self) -> RealKafkaClient:
        return RealKafkaClient(self.bootstrap_servers)


def copied_and_trimmed(site: LiveSite, topic: str, partition: int = 0, more: int = 0) -> int:
    """Copy the closed segments, then delete them and `more` offsets from the broker; return the remote log's end."""
    while site.copied("--topics", topic):
        pass
    end = remote_ends(site, topic)[partition]
    site.kafka.client.delete_records(topic, partition, end + more)
    return end


@contextmanager
def running_gateway(config: Path, port: int) -> Iterator[RunningGateway]:
    """Start the gateway of the settings file `config`, whose gateway.port is `port`; end it by SIGTERM.

    It must end with 0, unless the test killed it.
    """
    log = Path(tempfile.mkstemp(dir=config.parent, prefix="gateway-", suffix=".log")[1])
    with log.open("wb") as written:
        process = subprocess.Popen(
            [_PROGRAM, "gateway", "--config", config], stdin=subprocess.DEVNULL, stdout=written, stderr=written
        )
    try:
        wait_for(lambda: _READY in log.read_text() or process.poll() is not None, log.read_text, START_SECONDS)
        assert process.poll() is None, log.read_text()
        gateway = RunningGateway(port, log, process)
        yield gateway
        if not gateway.killed.is_set():
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_SECONDS) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
