"""The hook to the RemoteStorageManager: endpoint and secrets from a connection, everything else from the settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from tiered_storage_airflow.provider import CONNECTION_TYPE

if TYPE_CHECKING:
    from tiered_storage.remote_log.storage.object_client import ObjectStoreOptions
    from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager
    from tiered_storage.settings.settings import Settings

_IDENTITY = frozenset({"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"})


class RemoteStorageHook(BaseHook):
    """Opens the object store that the settings name, with the connection's endpoint and secrets.

    :param remote_storage_conn_id: a connection of type remote_storage, or of type aws; where it does not exist, the
        environment's AWS_* variables are used, as every tool of that store does. A local directory needs none.
    """

    conn_name_attr = "remote_storage_conn_id"
    default_conn_name = "remote_storage_default"
    conn_type = CONNECTION_TYPE
    hook_name = "Remote storage (Remote Log)"

    def __init__(self, remote_storage_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.remote_storage_conn_id = remote_storage_conn_id

    def options(self, settings: Settings) -> ObjectStoreOptions:
        """Return how to reach the store: the settings, then what the connection says."""
        from tiered_storage.remote_log.context import store_options

        secrets = self.secrets()
        # One identity or the other: a session token of the environment spoils the connection's key.
        foreign = _IDENTITY if "AWS_ACCESS_KEY_ID" in secrets else frozenset()
        inherited = {name: value for name, value in os.environ.items() if name not in foreign}
        return store_options(settings, {**inherited, **secrets})

    def secrets(self) -> dict[str, str]:
        """Return the connection as AWS_* variables."""
        try:
            connection = self.get_connection(self.remote_storage_conn_id)
        except AirflowNotFoundException:
            return {}
        extra = connection.extra_dejson
        named = {
            "AWS_ACCESS_KEY_ID": connection.login,
            "AWS_SECRET_ACCESS_KEY": connection.password,
            "AWS_SESSION_TOKEN": extra.get("aws_session_token"),
            "AWS_ENDPOINT_URL": extra.get("endpoint_url") or connection.host,
            "AWS_REGION": extra.get("region_name"),
        }
        return {name: str(value) for name, value in named.items() if value}

    def get_conn(self) -> RemoteStorageManager:
        """Open the RemoteStorageManager; the caller closes it."""
        from tiered_storage.remote_log.context import open_storage
        from tiered_storage.settings.settings import load_settings

        settings = load_settings()
        return open_storage(settings, self.options(settings))


@contextmanager
def store_environment(options: ObjectStoreOptions, job_secret: str | None = None) -> Iterator[None]:
    """Have `options` in this process's environment, as AWS_* variables, for the programs that are started meanwhile.

    With them a job's secret, as JOB_SECRET.

    Nothing else carries secrets: not a program's arguments, which all users of a machine can read, nor a file.
    """
    from tiered_storage.remote_log.jobs.worker import JOB_SECRET

    named = {
        "AWS_ACCESS_KEY_ID": options.access_key_id,
        "AWS_SECRET_ACCESS_KEY": options.secret_access_key,
        "AWS_SESSION_TOKEN": options.session_token,
        "AWS_ENDPOINT_URL": options.endpoint,
        "AWS_REGION": options.region,
        JOB_SECRET: job_secret,
    }
    before = {name: os.environ.get(name) for name in named}
    _set_environment(named)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)
