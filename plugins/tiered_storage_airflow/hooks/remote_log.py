"""The hook to all of a remote log: both managers, the local logs and the work area, opened together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from tiered_storage_airflow.clusters import Cluster
from tiered_storage_airflow.hooks.remote_log_metadata import RemoteLogMetadataHook
from tiered_storage_airflow.hooks.remote_storage import RemoteStorageHook

if TYPE_CHECKING:
    from tiered_storage.remote_log.manager import RemoteLogManager


class RemoteLogHook(BaseHook):
    """Opens a RemoteLogManager as the settings say: TIERED_STORAGE_CONFIG, or include/tiered_storage.yaml.

    :param remote_storage_conn_id: see RemoteStorageHook
    :param overrides: properties by name that override the file and the environment
    :param cluster: the name of another cluster, which has a settings file of its own; None: the first cluster
    :param remote_log_metadata_conn_id: see RemoteLogMetadataHook
    :param kafka_conn_id: a connection of type kafka to the cluster's brokers; None: the setting cluster.connection. A
        further cluster `west` uses the connection `{kafka_conn_id}__west`
    """

    hook_name = "Remote log"

    def __init__(
        self,
        remote_storage_conn_id: str = RemoteStorageHook.default_conn_name,
        overrides: Mapping[str, object] | None = None,
        cluster: str | None = None,
        *,
        remote_log_metadata_conn_id: str = RemoteLogMetadataHook.default_conn_name,
        kafka_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.remote_storage_conn_id = remote_storage_conn_id
        self.overrides = overrides
        self.cluster = cluster
        self.remote_log_metadata_conn_id = remote_log_metadata_conn_id
        self.kafka_conn_id = kafka_conn_id

    def get_conn(self, *, create: bool = False, outdated: bool = False) -> RemoteLogManager:
        """Open it; use it in a `with`. `create` and `outdated` as RemoteLogContext.open."""
        from tiered_storage.clock import wall_clock
        from tiered_storage.remote_log.manager import RemoteLogManager
        from tiered_storage.settings.settings import load_cluster_settings
        from tiered_storage_airflow.hooks.connections import source_properties

        # Another cluster never takes the first one's connection, not even if all DAGs get the same id by default.
        own = None if self.kafka_conn_id is None else Cluster(self.cluster).named(self.kafka_conn_id)
        kafka = {} if own is None else {"cluster.connection": own}
        named_by = "the setting cluster.connection" if own is None else "the task's kafka_conn_id"
        settings = load_cluster_settings(self.cluster, overrides={**(self.overrides or {}), **kafka})
        settings = RemoteLogMetadataHook(self.remote_log_metadata_conn_id, self.cluster).with_login(settings)
        options = RemoteStorageHook(self.remote_storage_conn_id, self.cluster).options(settings)
        return RemoteLogManager.open(
            settings,
            wall_clock,
            options,
            create=create,
            outdated=outdated,
            client_properties=source_properties(settings, named_by),
        )
