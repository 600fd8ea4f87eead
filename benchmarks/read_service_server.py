"""The server of bench_read_service.py: the read service and a folder of plain files, with Airflow's logins.

Its environment must have an AIRFLOW_HOME of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from socket import socket

import uvicorn
from airflow import settings
from airflow.api_fastapi.app import get_auth_manager, init_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.revoked_token import RevokedToken
from fastapi import Depends, FastAPI
from fastapi.responses import FileResponse

from tiered_storage_airflow.read_service.login import visitor_of
from tiered_storage_airflow.read_service.routes.api import read_api
from tiered_storage_airflow.read_service.service import ReadService


class TellingServer(uvicorn.Server):
    """Prints its address and a token once it accepts requests."""

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Start, and print the address."""
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        user = SimpleAuthManagerUser(username="bench", role="VIEWER")
        sys.stdout.write(f"ready http://127.0.0.1:{port} {get_auth_manager().generate_jwt(user)}\n")
        sys.stdout.flush()
        # Nobody reads the pipe after this: log to standard error, since a full pipe would block the server.
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def main() -> None:
    """Serve the files below the folder of the first argument, until the process ends."""
    files = {path.name: path for path in Path(sys.argv[1]).rglob("*.log")}
    init_auth_manager()
    RevokedToken.__table__.create(settings.engine, checkfirst=True)
    service = ReadService()
    api = read_api(service)

    @api.get("/plain/{name}", dependencies=[Depends(visitor_of)])
    async def plain(name: str) -> FileResponse:
        return FileResponse(files[name])

    outer = FastAPI()
    outer.mount("/v1", api)
    try:
        TellingServer(uvicorn.Config(outer, host="127.0.0.1", port=0, log_level="error", lifespan="off")).run()
    finally:
        service.close()


if __name__ == "__main__":
    main()
