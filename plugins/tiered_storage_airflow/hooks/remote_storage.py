"""The hook to the RemoteStorageManager: endpoint and secrets from a connection, everything else from the settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from tiered_storage_airflow.provider import CONNECTION_TYPE

if TYPE_CHECKING:
    from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
    from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager
    from tiered_storage.settings.settings import Settings


class RemoteStorageHook(BaseHook):
    """Opens the object store that the settings name, with the connection's endpoint and secrets.

    :param remote_storage_conn_id: a connection of type remote_storage, or of the store's usual type: aws, wasb,
        google_cloud_platform (untested), hdfs, webhdfs. If the default one does not exist, the hook uses the
        environment's variables (AWS_*, AZURE_*, HADOOP_*), as every tool of that store does. A local directory needs
        none.
    :param cluster: the name of another cluster; its own connection (`{remote_storage_conn_id}__{cluster}`) goes first
    """

    conn_name_attr = "remote_storage_conn_id"
    default_conn_name = "remote_storage_default"
    conn_type = CONNECTION_TYPE
    hook_name = "Remote storage (Remote Log)"

    def __init__(
        self, remote_storage_conn_id: str = default_conn_name, cluster: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.remote_storage_conn_id = remote_storage_conn_id
        self.cluster = cluster

    def options(self, settings: Settings) -> ObjectStoreOptions:
        """Return how to reach the store, from the settings, else the connection, else the environment.

        Raises AirflowFailException if another connection than the default does not exist.
        """
        from tiered_storage.remote_log.context import configured_options, store_options
        from tiered_storage.remote_log.storage.clients.options import options_of
        from tiered_storage_airflow.hooks.connections import connection_options, find_connection

        connection = find_connection(self.remote_storage_conn_id, self.default_conn_name, self.cluster)
        if connection is None:
            return store_options(settings)
        given = connection_options(connection, settings.rsm_config_url, options_of(os.environ))
        return configured_options(settings, given)

    def get_conn(self) -> RemoteStorageManager:
        """Open the RemoteStorageManager; the caller closes it."""
        from tiered_storage.remote_log.context import open_storage
        from tiered_storage.settings.settings import load_cluster_settings

        settings = load_cluster_settings(self.cluster)
        return open_storage(settings, self.options(settings))
