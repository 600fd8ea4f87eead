"""The hook to the RemoteLogMetadataManager: user and password from a connection, everything else from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

if TYPE_CHECKING:
    from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
    from tiered_storage.settings.settings import Settings


class RemoteLogMetadataHook(BaseHook):
    """Opens the metadata store that the settings name (rlmm.config.url).

    :param remote_log_metadata_conn_id: a connection of type postgres, which fills in the user, password, host, port and
        database that the URL leaves out; if it does not exist, PGPASSWORD or ~/.pgpass has the password. SQLite needs
        none.
    """

    conn_name_attr = "remote_log_metadata_conn_id"
    default_conn_name = "remote_log_metadata_default"
    hook_name = "Remote log metadata"

    def __init__(self, remote_log_metadata_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.remote_log_metadata_conn_id = remote_log_metadata_conn_id

    def with_login(self, settings: Settings) -> Settings:
        """Return `settings` with the connection's login in the URL, where nothing shows it.

        Raises ConfigurationError if the connection is that of another server or database.
        """
        from tiered_storage.remote_log.metadata.sql.database.postgres_database import with_login
        from tiered_storage.settings.properties.types import SecretUrl

        url = settings.rlmm_config_url.get_secret_value()
        if not url.startswith("postgresql:"):
            return settings
        try:
            found = self.get_connection(self.remote_log_metadata_conn_id)
        except AirflowNotFoundException:
            return settings
        given = {
            "username": found.login,
            "password": found.password,
            "host": found.host,
            "port": found.port,
            "database": found.schema,
        }
        completed = with_login(url, given, f"Airflow connection {self.remote_log_metadata_conn_id}")
        return settings.model_copy(update={"rlmm_config_url": SecretUrl(completed)})

    def get_conn(self) -> MetadataStore:
        """Open the store; the caller closes it, or uses it in a `with`."""
        from tiered_storage.clock import wall_clock
        from tiered_storage.remote_log.context import open_metadata
        from tiered_storage.settings.settings import load_settings

        return open_metadata(self.with_login(load_settings()), wall_clock)
