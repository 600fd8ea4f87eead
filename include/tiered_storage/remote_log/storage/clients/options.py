"""How to reach an object store: endpoint, region, keys, times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tiered_storage.remote_log.storage.transforms.key_ring import KeyRing


@dataclass(frozen=True, slots=True)
class ObjectStoreOptions:
    """How to reach a store; None means the provider's usual sources (AWS_…, GOOGLE_…, AZURE_… and so on).

    `region` and the keys are for s3:// URLs, `endpoint` also for az://. `properties` go to obstore unchanged, such as
    `azure_storage_account_key` for az://. Times are ms. `max_retries` counts the requests after the first one, all
    begun within `retry_timeout_ms`. `key_ring` has the keys of encrypted segments. Neither keys nor properties show in
    the repr.
    """

    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    allow_http: bool = False
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_timeout_ms: int = 5_000
    request_timeout_ms: int = 60_000
    max_retries: int = 4
    retry_timeout_ms: int = 15_000
    key_ring: KeyRing = field(default_factory=KeyRing, repr=False)


def options_of(environ: Mapping[str, str]) -> ObjectStoreOptions:
    """Return how `environ` (AWS_*) says that a store is reached; plain http only where the endpoint says so itself."""
    endpoint = environ.get("AWS_ENDPOINT_URL")
    return ObjectStoreOptions(
        endpoint=endpoint,
        region=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"),
        access_key_id=environ.get("AWS_ACCESS_KEY_ID"),
        secret_access_key=environ.get("AWS_SECRET_ACCESS_KEY"),
        session_token=environ.get("AWS_SESSION_TOKEN"),
        allow_http=endpoint is not None and endpoint.startswith("http://"),
    )
