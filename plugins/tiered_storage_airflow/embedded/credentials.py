"""The secrets of one embedded Airflow: generated at its first start, kept in files that only their owner reads."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tiered_storage.private_files import open_private
from tiered_storage_airflow.embedded.processes import EmbeddedAirflowError

ADMIN = "admin"
_RIGHTS = f"""\
# Who may see which topics in this Airflow, and who may lift a stop of all deletions; docs/read-service.md has more.
# It was written by the first start and is yours to change: changes count at once.
roles:
  ADMIN:
    describe: ["*"]
admins: [{ADMIN}]
# To show records, and to restore and export them by a DAG:
# users:
#   {ADMIN}:
#     read: ["*"]
"""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the services share, and the password of the user `admin`."""

    jwt_secret: str
    api_secret_key: str
    fernet_key: str
    admin_password: str


def secrets_path(airflow_home: Path) -> Path:
    """Return the path of the secrets that the services share."""
    return airflow_home / "secrets.json"


def passwords_path(airflow_home: Path) -> Path:
    """Return the path of the login: a JSON object of user and password, as Airflow's SimpleAuthManager reads it."""
    return airflow_home / "passwords.json"


def load_or_generate(airflow_home: Path, random_bytes: Callable[[int], bytes] = os.urandom) -> Credentials:
    """Return the credentials below `airflow_home`, generating whichever file is missing; both get mode 0600.

    A password that its owner wrote into the file is kept. Raises EmbeddedAirflowError if a file is damaged.
    """
    shared, login = secrets_path(airflow_home), passwords_path(airflow_home)
    if not shared.exists():
        generated = {
            "jwt_secret": _token(random_bytes(64)),
            "api_secret_key": _token(random_bytes(32)),
            "fernet_key": _token(random_bytes(32)),
        }
        _write_private(shared, generated)
    if not login.exists():
        _write_private(login, {ADMIN: _token(random_bytes(18))})
    for path in (shared, login):
        path.chmod(0o600)
    return read(airflow_home)


def read(airflow_home: Path) -> Credentials:
    """Return the credentials that lie below `airflow_home`; raises EmbeddedAirflowError if they do not."""
    shared, login = secrets_path(airflow_home), passwords_path(airflow_home)
    return Credentials(
        jwt_secret=_value(shared, "jwt_secret"),
        api_secret_key=_value(shared, "api_secret_key"),
        fernet_key=_value(shared, "fernet_key"),
        admin_password=_value(login, ADMIN),
    )


def rights_path(airflow_home: Path) -> Path:
    """Return the path of the rights file that counts if the settings name none."""
    return airflow_home / "read_rights.yaml"


def begin_rights(airflow_home: Path) -> None:
    """Write a rights file that lets the user `admin` see all topics, unless one exists: never change its owner's."""
    path = rights_path(airflow_home)
    if not path.exists():
        with open_private(path) as file:
            file.write(_RIGHTS.encode())


def _token(random: bytes) -> str:
    # With its padding: a Fernet key is 32 bytes in just this form.
    return base64.urlsafe_b64encode(random).decode()


def _value(path: Path, key: str) -> str:
    try:
        value = json.loads(path.read_text())[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EmbeddedAirflowError(
            f"{path}: cannot read {key} ({type(error).__name__}): stop Airflow and remove the file; the next start "
            "generates it again"
        ) from None
    return str(value)


def _write_private(path: Path, values: Mapping[str, str]) -> None:
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(unfinished, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:  # noqa: PTH123
        json.dump(dict(values), file)
    unfinished.replace(path)
