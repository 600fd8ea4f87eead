"""How a worker that knows no settings reaches the store: what the settings say of it, and secrets of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from tiered_storage.remote_log.jobs.worker import options_of
from tiered_storage.remote_log.storage.object_client import ObjectStoreOptions
from tiered_storage.remote_log.storage.opening import load_remote_storage_manager
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager
from tiered_storage.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Which store it is and where; no secrets."""

    storage_class: str
    storage_url: str
    endpoint: str | None
    region: str | None
    allow_http: bool

    @classmethod
    def of(cls, settings: Settings, options: ObjectStoreOptions) -> Self:
        """Describe the store of `settings`, reached as `options` say."""
        return cls(
            settings.remote_log_storage_manager_class_name,
            settings.rsm_config_url,
            options.endpoint,
            options.region,
            options.allow_http,
        )

    def open(self, environ: Mapping[str, str] = os.environ) -> RemoteStorageManager:
        """Open the store with the secrets that `environ` has (AWS_*); the caller closes it."""
        reached = replace(options_of(environ), endpoint=self.endpoint, region=self.region, allow_http=self.allow_http)
        return load_remote_storage_manager(self.storage_class, self.storage_url, reached)
