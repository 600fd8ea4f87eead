"""The hook to the RemoteLogMetadataManager."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

if TYPE_CHECKING:
    from tiered_storage.remote_log.metadata.metadata_store import MetadataStore


class RemoteLogMetadataHook(BaseHook):
    """Opens the metadata store that the settings name (rlmm.config.url)."""

    hook_name = "Remote log metadata"

    def get_conn(self) -> MetadataStore:
        """Open the store; the caller closes it, or uses it in a `with`."""
        from tiered_storage.clock import wall_clock
        from tiered_storage.remote_log.context import open_metadata
        from tiered_storage.settings.settings import load_settings

        return open_metadata(load_settings(), wall_clock)
