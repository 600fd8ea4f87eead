"""How to reach an object store: endpoint, region, keys, roles, times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tiered_storage.redaction import with_secrets_of
from tiered_storage.remote_log.storage.transforms.key_ring import KeyRing

HDFS_USER = "hadoop.user.name"
"""The property with the user's name on an HDFS without Kerberos; HADOOP_USER_NAME of the environment by default."""

HADOOP_SETTINGS = ("dfs.", "hadoop.", "fs.")
"""How the names of properties for hdfs:// begin: they are settings of Hadoop's."""


@dataclass(frozen=True, slots=True)
class ObjectStoreOptions:
    """How to reach a store; None means the provider's usual sources (AWS_…, GOOGLE_…, AZURE_… and so on).

    `roles` (ARNs) are assumed one with the other, the first with `web_identity_token_file`, the keys, or `profile`.
    `role_arguments` go to STS with the last one, such as ExternalId. `ca_bundle` is a file in PEM format.
    `region` and the keys are for s3:// URLs, `endpoint` also for az://. `properties` go to obstore unchanged, such as
    `azure_storage_account_key` for az://, those of HADOOP_SETTINGS to HDFS. Times are ms. `max_retries` counts the
    requests after the first one, all begun within `retry_timeout_ms`. `key_ring` has the keys of encrypted segments.
    `configs` are the options in the settings for a class of the user's own. A field with `repr=False` is a secret (see
    redaction.py): `properties` and `configs` may hold any.
    """

    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    allow_http: bool = False
    roles: tuple[str, ...] = ()
    role_arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    web_identity_token_file: str | None = None
    profile: str | None = None
    sts_endpoint: str | None = None
    ca_bundle: str | None = None
    path_style: bool = True
    requester_pays: bool = False
    server_side_encryption: str | None = None
    kms_key_id: str | None = None
    conditional_writes: bool = True
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    configs: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_timeout_ms: int = 5_000
    request_timeout_ms: int = 60_000
    max_retries: int = 4
    retry_timeout_ms: int = 15_000
    key_ring: KeyRing = field(default_factory=KeyRing, repr=False)

    def without_secrets(self) -> Self:
        """Return these options without those that may be secret."""
        return self.with_secrets_of(ObjectStoreOptions())

    def with_secrets_of(self, other: ObjectStoreOptions) -> Self:
        """Return this with the keys, key ring, properties, arguments of roles and configs that `other` has."""
        return with_secrets_of(self, other)


_OF_AZURE = frozenset(
    f"AZURE_{name}"
    for name in (
        *(f"STORAGE_{key}" for key in ("ACCOUNT_NAME", "ACCOUNT_KEY", "ACCESS_KEY", "SAS_KEY", "SAS_TOKEN", "TOKEN")),
        *("CLIENT_ID", "CLIENT_SECRET", "TENANT_ID", "AUTHORITY_HOST", "FEDERATED_TOKEN_FILE", "USE_AZURE_CLI"),
        *("MSI_ENDPOINT", "IDENTITY_ENDPOINT", "STORAGE_ENDPOINT"),
    )
)
"""The variables that say how an Azure account is reached; obstore takes them as properties in small letters."""


def options_of(environ: Mapping[str, str]) -> ObjectStoreOptions:
    """Return how `environ` (AWS_*, AZURE_*) says that a store is reached; http only where the endpoint says so."""
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    return ObjectStoreOptions(
        endpoint=endpoint,
        sts_endpoint=environ.get("AWS_ENDPOINT_URL_STS"),
        ca_bundle=environ.get("AWS_CA_BUNDLE"),
        properties={name.lower(): environ[name] for name in sorted(_OF_AZURE & environ.keys()) if environ[name]},
        region=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"),
        access_key_id=environ.get("AWS_ACCESS_KEY_ID"),
        secret_access_key=environ.get("AWS_SECRET_ACCESS_KEY"),
        session_token=environ.get("AWS_SESSION_TOKEN"),
        allow_http=endpoint is not None and endpoint.startswith("http://"),
    )
