"""An S3 server in a process of its own, which keeps the objects as files: it can be killed, paused and started again.

python -m tiered_storage_airflow.demo_cluster.s3_server FOLDER PORT
"""

from __future__ import annotations

import signal
import subprocess
import sys
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
from localbucket import S3Handler

from tiered_storage.errors import TieredStorageError
from tiered_storage_airflow.embedded.processes import wait_until

HOST = "127.0.0.1"
BUCKET = "remote-log"
REGION = "us-east-1"
ACCESS_KEY, SECRET_KEY = "demo-access-key", "demo-secret-key"  # the server takes any
START_SECONDS = 30.0


class S3ServerError(TieredStorageError):
    """The S3 server did not start."""


class S3Server:
    """An S3 server with one bucket, whose objects are files below `folder`. A context manager that runs it."""

    def __init__(self, folder: Path, port: int) -> None:
        """Start nothing yet."""
        self.folder = folder
        self.url = f"http://{HOST}:{port}"
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.start()
        httpx.put(f"{self.url}/{BUCKET}", trust_env=False).raise_for_status()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it answers. Raises S3ServerError if it does not."""
        log = self.folder.parent / "s3-server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - this module
                [sys.executable, "-m", __spec__.name, str(self.folder), str(self._port)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C ends us, and we then end the server.
                start_new_session=True,
            )
        if not wait_until(self._answers, START_SECONDS, interval=0.05):
            raise S3ServerError(f"the S3 server at {self.url} does not answer: see {log}")

    def kill(self) -> None:
        """End it at once; its objects stay."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Let it answer nothing, as a server that hangs, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it continue."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _answers(self) -> bool:
        try:
            return httpx.get(self.url, trust_env=False).is_success
        except httpx.TransportError:
            return False


def http_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Return a server, not running yet, of the buckets in `folder`; port 0: any free one."""
    # Answers go out in two writes: Nagle's algorithm would hold the second one back for 40 ms.
    settings = {"data_root": folder.resolve(), "disable_nagle_algorithm": True}
    return ThreadingHTTPServer((HOST, port), type("Handler", (S3Handler,), settings))


if __name__ == "__main__":
    http_server(Path(sys.argv[1]), int(sys.argv[2])).serve_forever()
