"""The read service over a small remote log, and people with and without rights on its topics.

orders-0 has the offsets 0 to 34: 0 to 19 are remote only, 20 to 29 in both tiers, the others local. payments-0 has 0 to
14, of which 0 to 9 are remote too. `reader` may read orders, `watcher` may only see it, and whoever has the role of an
operator may read everything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx import Response

from support.remote_logs import RemoteLogFiles, a_copied_remote_log
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata

if TYPE_CHECKING:
    from tiered_storage_airflow.read_service.service import ReadService

CLOSED_SEGMENTS = {("orders", 0): 3, ("payments", 0): 1}
LOCAL_START = 20
RIGHTS = """\
roles:
  OP:
    read: ["*"]
users:
  reader:
    read: [orders]
  watcher:
    describe: [orders]
"""


def prepare_logins() -> None:
    """Have Airflow's auth manager ready, with the one table of its database that it looks into for a token."""
    from airflow import settings
    from airflow.api_fastapi.app import init_auth_manager
    from airflow.models.revoked_token import RevokedToken

    init_auth_manager()
    RevokedToken.__table__.create(settings.engine, checkfirst=True)


def token(name: str, role: str = "VIEWER", seconds: int = 3600) -> str:
    """Return a token of Airflow's for a user."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    user = SimpleAuthManagerUser(username=name, role=role)
    return str(get_auth_manager().generate_jwt(user, expiration_time_in_seconds=seconds))


def login(name: str, role: str = "VIEWER", seconds: int = 3600) -> dict[str, str]:
    """Return the header that says who asks."""
    return {"Authorization": f"Bearer {token(name, role, seconds)}"}


@dataclass
class ReadServiceSite:
    """An open service, and a client of it."""

    files: RemoteLogFiles
    rights: Path
    client: TestClient
    service: ReadService

    @classmethod
    @contextmanager
    def open(cls, root: Path, **properties: Any) -> Iterator[Self]:
        """Lay everything out below `root` and open it."""
        with cls.serve(a_copied_remote_log(root, CLOSED_SEGMENTS, **properties)) as site:
            yield site

    @classmethod
    @contextmanager
    def serve(cls, files: RemoteLogFiles) -> Iterator[Self]:
        """Delete what is remote only from the local log of orders-0 in `files`, and open the service over them."""
        from tiered_storage_airflow.read_service.routes.api import read_api
        from tiered_storage_airflow.read_service.service import ReadService

        rights = files.root / "rights.yaml"
        rights.write_text(RIGHTS)
        files.properties["read.service.rights.file"] = str(rights)
        for path in files.partition_directory().glob("0*"):
            if int(path.name.partition(".")[0]) < LOCAL_START:
                path.unlink()
        service = ReadService(files.open)
        try:
            with TestClient(read_api(service), raise_server_exceptions=False) as client:
                yield cls(files, rights, client, service)
        finally:
            service.close()

    def get(self, path: str, name: str = "reader", role: str = "VIEWER", **options: Any) -> Response:
        """Ask for a path, as a user."""
        headers = {**login(name, role), **options.pop("headers", {})}
        answer: Response = self.client.get(path, headers=headers, **options)
        return answer

    def segments(self, topic: str = "orders") -> list[RemoteLogSegmentMetadata]:
        """Return the remote segments of partition 0 of a topic."""
        from support.remote_logs import partition_of

        with self.files.open() as log:
            return list(log.context.segments.list_remote_log_segments(partition_of(topic)))

    def changed(self, change: Callable[[RemoteLogManager], None]) -> None:
        """Change the remote log without the service."""
        with self.files.open() as log:
            change(log)


@contextmanager
def served(site: ReadServiceSite, wrap: Callable[[FastAPI], None] = lambda _: None) -> Iterator[str]:
    """Serve `site` over HTTP on this machine, where Airflow has it; yield the address. `wrap` adds layers around."""
    import uvicorn

    from tiered_storage_airflow.page.app import page_app
    from tiered_storage_airflow.read_service.routes.api import read_api

    outer = FastAPI()
    outer.mount("/remote-log/v1", read_api(site.service))
    outer.mount("/remote-log/page", page_app(site.service))
    wrap(outer)
    config = uvicorn.Config(outer, host="127.0.0.1", port=0, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
