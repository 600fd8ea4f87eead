"""The hook to the RemoteLogMetadataManager: user and password from a connection, everything else from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

if TYPE_CHECKING:
    from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
    from tiered_storage.settings.settings import Settings


class RemoteLogMetadataHook(BaseHook):
    """Opens the metadata store that the settings name (rlmm.config.url).

    :param remote_log_metadata_conn_id: a connection of type postgres, which fills in the user, password, host, port and
        database that the URL leaves out; if the default one does not exist, PGPASSWORD or ~/.pgpass has the password.
        SQLite needs none.
    :param cluster: the name of another cluster; its own connection (`{remote_log_metadata_conn_id}__{cluster}`) goes
        first
    """

    conn_name_attr = "remote_log_metadata_conn_id"
    default_conn_name = "remote_log_metadata_default"
    hook_name = "Remote log metadata"

    def __init__(
        self, remote_log_metadata_conn_id: str = default_conn_name, cluster: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.remote_log_metadata_conn_id = remote_log_metadata_conn_id
        self.cluster = cluster

    def with_login(self, settings: Settings) -> Settings:
        """Return `settings` with the connection's login in the URL, where nothing shows it.

        Raises ConfigurationError if the connection is that of another server or database, and AirflowFailException if
        another connection than the default does not exist.
        """
        from tiered_storage.redaction import SecretUrl
        from tiered_storage.remote_log.metadata.sql.database.postgres_database import with_login
        from tiered_storage_airflow.hooks.connections import find_connection

        url = settings.rlmm_config_url.get_secret_value()
        if not url.startswith("postgresql:"):
            return settings
        found = find_connection(self.remote_log_metadata_conn_id, self.default_conn_name, self.cluster)
        if found is None:
            return settings
        given = {
            "username": found.login,
            "password": found.password,
            "host": found.host,
            "port": found.port,
            "database": found.schema,
        }
        completed = with_login(url, given, f"Airflow connection {found.conn_id}")
        return settings.model_copy(update={"rlmm_config_url": SecretUrl(completed)})

    def get_conn(self) -> MetadataStore:
        """Open the store; the caller closes it, or uses it in a `with`."""
        from tiered_storage.clock import wall_clock
        from tiered_storage.remote_log.context import open_metadata
        from tiered_storage.settings.settings import load_cluster_settings
        from tiered_storage_airflow.hooks.connections import source_properties

        settings = load_cluster_settings(self.cluster)
        properties = source_properties(settings) if settings.has_metadata_topic else None
        return open_metadata(self.with_login(settings), wall_clock, client_properties=properties)
