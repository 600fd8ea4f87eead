"""Settings of where data are kept: state and work area, the object store, the metadata; and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationInfo, field_validator

from tiered_storage.settings.own_managers import METADATA_MANAGER, STORAGE_MANAGER
from tiered_storage.settings.properties.model import Contradiction, PropertyModel, Source, contradiction, setting
from tiered_storage.settings.properties.types import (
    ClassPath,
    Folder,
    MetadataUrl,
    OptionalEndpoint,
    OptionalFile,
    OptionalPrice,
    OptionalText,
    Roles,
    StorageUrl,
    Whole,
)

STATE = "Our own state"
REMOTE_STORAGE = "The remote tier"
METADATA = "The metadata of the remote log"
COSTS = "Costs"

_CLASS_NAME = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"
_DOTTED_NAME = "a class by its dotted name: package.module.Class"
_CLASS_PATH = "folders, wheels or zip archives, separated by commas or colons"
_PREFIX = r"^[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*\.$"
_ALLOWED_PREFIX = "the start of names, with a dot at its end"
_OPTIONS = "text"
_ALLOWED_PRICE = "a number, 0 or more, in any one currency"
_NOT_COUNTED = "not counted"


def _inside_state(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda given: (given["state_directory"] / name).as_uri()


class StorageSettings(PropertyModel):
    """Where state, objects and metadata are."""

    state_directory: Folder = setting("state.directory", ".state", STATE, Source.OURS, allowed="a folder")
    """The folder for all local state by default; deleting it deletes that state. A command or run that opens it removes
    the rights of other users, unless the folder also holds other things."""

    work_url: StorageUrl = setting(
        "work.url",
        _inside_state("work"),
        STATE,
        Source.OURS,
        allowed="a folder, or a URL such as file:///folder, s3://bucket/prefix or hdfs://host:port/folder",
        default_text="{state.directory}/work",
    )
    """Where plans and results pass between Airflow and Spark: both must reach it, nobody else should write to it."""

    export_url: StorageUrl = setting(
        "export.url",
        _inside_state("exports"),
        STATE,
        Source.OURS,
        allowed="a folder, or a URL such as file:///folder, s3://bucket/prefix or hdfs://host:port/folder",
        default_text="{state.directory}/exports",
    )
    """Where topics are exported as tables, each in a folder of its name. A new folder is private to this user; to share
    it, create it yourself."""

    remote_log_storage_system_enable: bool = setting(
        "remote.log.storage.system.enable", True, REMOTE_STORAGE, Source.KAFKA
    )
    """Whether anything is copied at all (Kafka's default: false)."""

    remote_log_storage_manager_class_name: str = setting(
        "remote.log.storage.manager.class.name",
        STORAGE_MANAGER.our_class,
        REMOTE_STORAGE,
        Source.KAFKA,
        allowed=_DOTTED_NAME,
        pattern=_CLASS_NAME,
    )
    """The RemoteStorageManager class that stores and fetches segments: ours, or
    [your own](stores.md#a-store-of-your-own) (Kafka's default: none)."""

    remote_log_storage_manager_class_path: ClassPath = setting(
        "remote.log.storage.manager.class.path", (), REMOTE_STORAGE, Source.KAFKA, allowed=_CLASS_PATH
    )
    """Where Python finds your own class, after the places where it looks anyway. Spark's workers need it at the same
    path."""

    remote_log_storage_manager_impl_prefix: str = setting(
        "remote.log.storage.manager.impl.prefix",
        STORAGE_MANAGER.prefix,
        REMOTE_STORAGE,
        Source.KAFKA,
        allowed=_ALLOWED_PREFIX,
        pattern=_PREFIX,
    )
    """How the names of the class's options begin."""

    rsm_config: Mapping[str, str] = setting(
        STORAGE_MANAGER.prefix, {}, REMOTE_STORAGE, Source.KAFKA, allowed=_OPTIONS, is_secret=True
    )
    """Every other name that begins so is an option of your own class. The class gets all options as they are, without
    the prefix: also those of this table, which keep their meaning. Variables of the environment cannot set options."""

    rsm_config_url: StorageUrl = setting(
        "rsm.config.url",
        _inside_state("remote"),
        REMOTE_STORAGE,
        Source.OURS,
        allowed="a folder, or a URL such as file:///folder, s3://bucket/prefix or hdfs://host:port/folder",
        default_text="{state.directory}/remote",
    )
    """The object store, and the prefix of all keys in it. A new folder is private to this user; to share it, create it
    yourself. Files in it get no wider rights than the folder."""

    rsm_config_allow_http: bool = setting("rsm.config.allow.http", False, REMOTE_STORAGE, Source.OURS)
    """Whether the object store may be reached without encryption."""

    rsm_config_endpoint: OptionalEndpoint = setting(
        "rsm.config.endpoint",
        None,
        REMOTE_STORAGE,
        Source.OURS,
        allowed="an https URL, or an http one with rsm.config.allow.http",
        default_text="the provider's own",
    )
    """The address of an S3 API other than Amazon's, or of an Azure account's blobs."""

    rsm_config_region: OptionalText = setting(
        "rsm.config.region",
        None,
        REMOTE_STORAGE,
        Source.OURS,
        allowed="a region's name, such as eu-central-1",
        pattern=r"^[A-Za-z0-9-]+$",
        default_text="AWS_REGION of the environment",
    )
    """The region of the bucket."""

    rsm_config_compression_enabled: bool = setting("rsm.config.compression.enabled", False, REMOTE_STORAGE, Source.OURS)
    """Whether segments are compressed by zstd in the store; a topic's remote.compression.enabled comes first."""

    rsm_config_compression_heuristic_enabled: bool = setting(
        "rsm.config.compression.heuristic.enabled", True, REMOTE_STORAGE, Source.OURS
    )
    """Whether chunks whose batches are mostly compressed already, by their headers, are left as they are."""

    rsm_config_encryption_enabled: bool = setting("rsm.config.encryption.enabled", False, REMOTE_STORAGE, Source.OURS)
    """Whether segments are encrypted in the store; a topic's remote.encryption.enabled comes first."""

    rsm_config_encryption_key_ring_file: OptionalFile = setting(
        "rsm.config.encryption.key.ring.file",
        None,
        REMOTE_STORAGE,
        Source.OURS,
        allowed="a file as in docs/encryption.md",
        default_text="none",
    )
    """The key ring: the keys that wrap the data keys of encrypted segments."""

    rsm_config_encryption_key_pair_id: OptionalText = setting(
        "rsm.config.encryption.key.pair.id",
        None,
        REMOTE_STORAGE,
        Source.OURS,
        allowed="the id of a key in the key ring",
        default_text="none",
    )
    """The key of the key ring that wraps the data keys of new segments."""

    rsm_config_role_arn: Roles = setting(
        "rsm.config.role.arn",
        (),
        REMOTE_STORAGE,
        Source.OURS,
        allowed="ARNs of roles, separated by commas",
        default_text="none",
    )
    """The AWS role to assume for the store. Several are assumed one with the other; the store sees the last one."""

    rsm_config_role_external_id: OptionalText = setting(
        "rsm.config.role.external.id",
        None,
        REMOTE_STORAGE,
        Source.OURS,
        allowed="text",
        default_text="none",
    )
    """What the last role asks of those who assume it."""

    rsm_config_sts_endpoint: OptionalEndpoint = setting(
        "rsm.config.sts.endpoint",
        None,
        REMOTE_STORAGE,
        Source.OURS,
        allowed="an https URL, or an http one with rsm.config.allow.http",
        default_text="the provider's own",
    )
    """The address of the Security Token Service that hands out roles."""

    rsm_config_ca_bundle: OptionalFile = setting(
        "rsm.config.ca.bundle",
        None,
        REMOTE_STORAGE,
        Source.OURS,
        allowed="a file in PEM format",
        default_text="AWS_CA_BUNDLE of the environment",
    )
    """Certificates of authorities to trust beside the system's. Spark's workers need the file at the same path."""

    rsm_config_path_style_access: bool = setting("rsm.config.path.style.access", True, REMOTE_STORAGE, Source.OURS)
    """Whether the bucket is in the path of a request to S3; false: in its host name."""

    rsm_config_requester_pays: bool = setting("rsm.config.requester.pays", False, REMOTE_STORAGE, Source.OURS)
    """Whether you agree to pay for requests to somebody else's S3 bucket."""

    rsm_config_server_side_encryption: OptionalText = setting(
        "rsm.config.server.side.encryption",
        None,
        REMOTE_STORAGE,
        Source.OURS,
        allowed="AES256, aws:kms or aws:kms:dsse",
        pattern=r"^(AES256|aws:kms|aws:kms:dsse)$",
        default_text="what the bucket does",
    )
    """How S3 is asked to encrypt each object."""

    rsm_config_kms_key_id: OptionalText = setting(
        "rsm.config.kms.key.id",
        None,
        REMOTE_STORAGE,
        Source.OURS,
        allowed="the id or ARN of a key",
        pattern=r"^[A-Za-z0-9:/_-]+$",
        default_text="AWS's own key",
    )
    """The key of AWS KMS for rsm.config.server.side.encryption."""

    rsm_config_conditional_writes: bool = setting("rsm.config.conditional.writes", True, REMOTE_STORAGE, Source.OURS)
    """Whether the store can create an object only if there is none (If-None-Match). Without it nothing notices that two
    installations write to one store at the same moment: see stores.md."""

    rlmm_config_url: MetadataUrl = setting(
        "rlmm.config.url",
        lambda given: f"sqlite:///{given['state_directory'] / 'remote_log_metadata.db'}",
        METADATA,
        Source.OURS,
        allowed="sqlite:///folder/file.db, or postgresql://user@host:5432/database",
        default_text="sqlite:///{state.directory}/remote_log_metadata.db",
    )
    """The metadata store; docs/metadata-stores.md helps to choose. A password is not a setting: give it by an Airflow
    connection, or by PGPASSWORD in the environment."""

    remote_log_metadata_manager_class_name: str = setting(
        "remote.log.metadata.manager.class.name",
        METADATA_MANAGER.our_class,
        METADATA,
        Source.KAFKA,
        allowed=_DOTTED_NAME,
        pattern=_CLASS_NAME,
    )
    """The MetadataStore class that keeps the metadata: ours, or
    [your own](metadata-stores.md#a-metadata-store-of-your-own) (Kafka's default:
    org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager)."""

    remote_log_metadata_manager_class_path: ClassPath = setting(
        "remote.log.metadata.manager.class.path", (), METADATA, Source.KAFKA, allowed=_CLASS_PATH
    )
    """Where Python finds your own class, after the places where it looks anyway."""

    remote_log_metadata_manager_impl_prefix: str = setting(
        "remote.log.metadata.manager.impl.prefix",
        METADATA_MANAGER.prefix,
        METADATA,
        Source.KAFKA,
        allowed=_ALLOWED_PREFIX,
        pattern=_PREFIX,
    )
    """How the names of the class's options begin."""

    rlmm_config: Mapping[str, str] = setting(
        METADATA_MANAGER.prefix, {}, METADATA, Source.KAFKA, allowed=_OPTIONS, is_secret=True
    )
    """Every other name that begins so is an option of your own class, as for a RemoteStorageManager."""

    remote_log_metadata_custom_metadata_max_bytes: Whole = setting(
        "remote.log.metadata.custom.metadata.max.bytes", 128, METADATA, Source.KAFKA, unit="bytes", at_least=0
    )
    """How long the custom metadata may be that a RemoteStorageManager of your own returns for a segment; the copy of a
    segment with more fails."""

    metadata_busy_timeout_ms: Whole = setting(
        "metadata.busy.timeout.ms", 10_000, METADATA, Source.OURS, unit="ms", at_least=0, at_most=600_000
    )
    """How long a call waits for a locked metadata store, or for a server that is away, before it fails with an error
    that may be retried."""

    @property
    def has_own_storage_manager(self) -> bool:
        """Whether the RemoteStorageManager is a class of the user's own."""
        return self.remote_log_storage_manager_class_name != STORAGE_MANAGER.our_class

    @property
    def has_own_metadata_manager(self) -> bool:
        """Whether the MetadataStore is a class of the user's own."""
        return self.remote_log_metadata_manager_class_name != METADATA_MANAGER.our_class

    @field_validator("rsm_config_endpoint", "rsm_config_sts_endpoint")
    @classmethod
    def _encrypted_or_allowed(cls, endpoint: str | None, info: ValidationInfo) -> str | None:
        if endpoint and endpoint.startswith("http://") and info.data.get("rsm_config_allow_http") is False:
            name = cls.model_fields[str(info.field_name)].alias
            raise contradiction(Contradiction(f"{name} is {endpoint}: http needs rsm.config.allow.http: true"))
        return endpoint

    @field_validator("rsm_config_kms_key_id")
    @classmethod
    def _key_of_kms(cls, key: str | None, info: ValidationInfo) -> str | None:
        encryption = info.data.get("rsm_config_server_side_encryption") or ""
        if key and not encryption.startswith("aws:kms"):
            why = "rsm.config.kms.key.id needs rsm.config.server.side.encryption: aws:kms, or aws:kms:dsse"
            raise contradiction(Contradiction(why))
        return key


class CostSettings(PropertyModel):
    """What a site pays for the store, the network and its brokers' disks."""

    cost_store_gb_month: OptionalPrice = setting(
        "cost.store.gb.month", None, COSTS, Source.OURS, allowed=_ALLOWED_PRICE, default_text=_NOT_COUNTED
    )
    """What the store takes for a GB (10^9 bytes) a month."""

    cost_store_write_thousand: OptionalPrice = setting(
        "cost.store.write.thousand", None, COSTS, Source.OURS, allowed=_ALLOWED_PRICE, default_text=_NOT_COUNTED
    )
    """What the store takes for a thousand requests that write an object. A segment is three objects."""

    cost_store_read_thousand: OptionalPrice = setting(
        "cost.store.read.thousand", None, COSTS, Source.OURS, allowed=_ALLOWED_PRICE, default_text=_NOT_COUNTED
    )
    """What the store takes for a thousand requests that read an object."""

    cost_transfer_gb: OptionalPrice = setting(
        "cost.transfer.gb", None, COSTS, Source.OURS, allowed=_ALLOWED_PRICE, default_text=_NOT_COUNTED
    )
    """What the network takes for a GB (10^9 bytes) on its way from the brokers to the store, or back."""

    cost_disk_gb_month: OptionalPrice = setting(
        "cost.disk.gb.month", None, COSTS, Source.OURS, allowed=_ALLOWED_PRICE, default_text=_NOT_COUNTED
    )
    """What a GB (10^9 bytes) of the brokers' disks costs a month. Every replica counts."""
