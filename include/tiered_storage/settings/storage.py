"""Settings of where data are kept: state and work area, the object store, the metadata; and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationInfo, field_validator

from tiered_storage.settings.own_managers import (
    KAFKAS_METADATA_MANAGER,
    METADATA_MANAGER,
    METADATA_TOPIC_OPTION,
    STORAGE_MANAGER,
    TOPIC_METADATA_MANAGER,
)
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
_DOTTED_NAME = "a class: package.module.Class"
_CLASS_PATH = "folders, wheels or zip archives, with commas or colons"
_PREFIX = r"^[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*\.$"
_ALLOWED_PREFIX = "text with a dot at its end"
_OPTIONS = "text"
_ALLOWED_PRICE = "a number, 0 or more"
_NOT_COUNTED = "not counted"


def _inside_state(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda given: (given["state_directory"] / name).as_uri()


class StorageSettings(PropertyModel):
    """Where state, objects and metadata are."""

    state_directory: Folder = setting("state.directory", ".state", STATE, Source.OURS, allowed="a folder")
    """The folder of all local state, by default."""

    work_url: StorageUrl = setting(
        "work.url",
        _inside_state("work"),
        STATE,
        Source.OURS,
        allowed="a folder, or a URL such as s3://bucket/prefix",
        default_text="{state.directory}/work",
    )
    """Where Airflow and Spark exchange plans and results; nobody else should write to it."""

    export_url: StorageUrl = setting(
        "export.url",
        _inside_state("exports"),
        STATE,
        Source.OURS,
        allowed="a folder, or a URL such as s3://bucket/prefix",
        default_text="{state.directory}/exports",
    )
    """Where topics are exported as tables. A new folder is private to this user; to share it, create it yourself."""

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
    """The class that stores and fetches segments: ours, or [your own](stores.md#a-store-of-your-own) (Kafka's default:
    none)."""

    remote_log_storage_manager_class_path: ClassPath = setting(
        "remote.log.storage.manager.class.path", (), REMOTE_STORAGE, Source.KAFKA, allowed=_CLASS_PATH
    )
    """Where Python also finds your own class, on Spark's workers too."""

    remote_log_storage_manager_impl_prefix: str = setting(
        "remote.log.storage.manager.impl.prefix",
        STORAGE_MANAGER.prefix,
        REMOTE_STORAGE,
        Source.KAFKA,
        allowed=_ALLOWED_PREFIX,
        pattern=_PREFIX,
    )
    """The prefix of the class's options."""

    rsm_config: Mapping[str, str] = setting(
        STORAGE_MANAGER.prefix, {}, REMOTE_STORAGE, Source.KAFKA, allowed=_OPTIONS, is_secret=True
    )
    """Other names with this prefix are [options of your own class](stores.md#a-store-of-your-own)."""

    rsm_config_url: StorageUrl = setting(
        "rsm.config.url",
        _inside_state("remote"),
        REMOTE_STORAGE,
        Source.OURS,
        allowed="a folder, or a URL such as s3://bucket/prefix",
        default_text="{state.directory}/remote",
    )
    """The object store, and the prefix of its keys; gs:// is untested. A new folder is private, as above."""

    rsm_config_allow_http: bool = setting("rsm.config.allow.http", False, REMOTE_STORAGE, Source.OURS)
    """Whether the store may be reached without encryption."""

    rsm_config_endpoint: OptionalEndpoint = setting(
        "rsm.config.endpoint",
        None,
        REMOTE_STORAGE,
        Source.OURS,
        allowed="an https URL; http with rsm.config.allow.http",
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
    """The bucket's region."""

    rsm_config_compression_enabled: bool = setting("rsm.config.compression.enabled", False, REMOTE_STORAGE, Source.OURS)
    """The default of remote.compression.enabled."""

    rsm_config_compression_heuristic_enabled: bool = setting(
        "rsm.config.compression.heuristic.enabled", True, REMOTE_STORAGE, Source.OURS
    )
    """Whether chunks of mostly compressed batches stay as they are."""

    rsm_config_encryption_enabled: bool = setting("rsm.config.encryption.enabled", False, REMOTE_STORAGE, Source.OURS)
    """The default of remote.encryption.enabled."""

    rsm_config_encryption_key_ring_file: OptionalFile = setting(
        "rsm.config.encryption.key.ring.file",
        None,
        REMOTE_STORAGE,
        Source.OURS,
        allowed="a file as in docs/encryption.md",
        default_text="none",
    )
    """The keys that wrap the data keys of encrypted segments."""

    rsm_config_encryption_key_pair_id: OptionalText = setting(
        "rsm.config.encryption.key.pair.id",
        None,
        REMOTE_STORAGE,
        Source.OURS,
        allowed="the id of a key in the key ring",
        default_text="none",
    )
    """The key that wraps new data keys."""

    rsm_config_role_arn: Roles = setting(
        "rsm.config.role.arn",
        (),
        REMOTE_STORAGE,
        Source.OURS,
        allowed="ARNs of roles, separated by commas",
        default_text="none",
    )
    """The AWS roles to assume, each with the one before."""

    rsm_config_role_external_id: OptionalText = setting(
        "rsm.config.role.external.id",
        None,
        REMOTE_STORAGE,
        Source.OURS,
        allowed="text",
        default_text="none",
    )
    """The external id for the last role."""

    rsm_config_sts_endpoint: OptionalEndpoint = setting(
        "rsm.config.sts.endpoint",
        None,
        REMOTE_STORAGE,
        Source.OURS,
        allowed="an https URL; http with rsm.config.allow.http",
        default_text="the provider's own",
    )
    """The address of the Security Token Service."""

    rsm_config_ca_bundle: OptionalFile = setting(
        "rsm.config.ca.bundle",
        None,
        REMOTE_STORAGE,
        Source.OURS,
        allowed="a file in PEM format",
        default_text="AWS_CA_BUNDLE of the environment",
    )
    """Authorities to trust besides the system's; at the same path on Spark's workers."""

    rsm_config_path_style_access: bool = setting("rsm.config.path.style.access", True, REMOTE_STORAGE, Source.OURS)
    """Whether the bucket is in the path of S3 requests; false: in the host name."""

    rsm_config_requester_pays: bool = setting("rsm.config.requester.pays", False, REMOTE_STORAGE, Source.OURS)
    """Whether you pay for requests to somebody else's bucket."""

    rsm_config_server_side_encryption: OptionalText = setting(
        "rsm.config.server.side.encryption",
        None,
        REMOTE_STORAGE,
        Source.OURS,
        allowed="AES256, aws:kms or aws:kms:dsse",
        pattern=r"^(AES256|aws:kms|aws:kms:dsse)$",
        default_text="what the bucket does",
    )
    """How S3 encrypts each object."""

    rsm_config_kms_key_id: OptionalText = setting(
        "rsm.config.kms.key.id",
        None,
        REMOTE_STORAGE,
        Source.OURS,
        allowed="the id or ARN of a key",
        pattern=r"^[A-Za-z0-9:/_-]+$",
        default_text="AWS's own key",
    )
    """The KMS key for rsm.config.server.side.encryption."""

    rsm_config_conditional_writes: bool = setting("rsm.config.conditional.writes", True, REMOTE_STORAGE, Source.OURS)
    """Whether the store honours [If-None-Match](stores.md#conditional-writes). If not, let only one installation use
    it."""

    rlmm_config_url: MetadataUrl = setting(
        "rlmm.config.url",
        lambda given: f"sqlite:///{given['state_directory'] / 'remote_log_metadata.db'}",
        METADATA,
        Source.OURS,
        allowed="sqlite:///folder/file.db, or postgresql://user@host:5432/database",
        default_text="sqlite:///{state.directory}/remote_log_metadata.db",
    )
    """The [metadata store](metadata.md), without its password."""

    remote_log_metadata_manager_class_name: str = setting(
        "remote.log.metadata.manager.class.name",
        METADATA_MANAGER.our_class,
        METADATA,
        Source.KAFKA,
        allowed=_DOTTED_NAME,
        pattern=_CLASS_NAME,
    )
    """The class that keeps the metadata: ours for SQL, [ours for a topic](metadata.md#set-up-a-metadata-topic), or
    [your own](metadata.md#a-metadata-store-of-your-own). Ours for a topic has Kafka's name too (Kafka's default:
    org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager)."""

    remote_log_metadata_manager_class_path: ClassPath = setting(
        "remote.log.metadata.manager.class.path", (), METADATA, Source.KAFKA, allowed=_CLASS_PATH
    )
    """Where Python also finds your own class."""

    remote_log_metadata_manager_impl_prefix: str = setting(
        "remote.log.metadata.manager.impl.prefix",
        METADATA_MANAGER.prefix,
        METADATA,
        Source.KAFKA,
        allowed=_ALLOWED_PREFIX,
        pattern=_PREFIX,
    )
    """The prefix of the class's options."""

    rlmm_config: Mapping[str, str] = setting(
        METADATA_MANAGER.prefix, {}, METADATA, Source.KAFKA, allowed=_OPTIONS, is_secret=True
    )
    """Other names with this prefix are options of your own class, or of a
    [metadata topic](metadata.md#set-up-a-metadata-topic)."""

    remote_log_metadata_custom_metadata_max_bytes: Whole = setting(
        "remote.log.metadata.custom.metadata.max.bytes", 128, METADATA, Source.KAFKA, unit="bytes", at_least=0
    )
    """The most custom metadata that your own RemoteStorageManager may return for a segment."""

    metadata_busy_timeout_ms: Whole = setting(
        "metadata.busy.timeout.ms", 10_000, METADATA, Source.OURS, unit="ms", at_least=0, at_most=600_000
    )
    """How long a call waits for a locked metadata store, or for its server."""

    @property
    def has_own_storage_manager(self) -> bool:
        """Whether the RemoteStorageManager is a class of the user's own."""
        return self.remote_log_storage_manager_class_name != STORAGE_MANAGER.our_class

    @property
    def has_own_metadata_manager(self) -> bool:
        """Whether the MetadataStore is another class than that of a SQL database."""
        return self.remote_log_metadata_manager_class_name != METADATA_MANAGER.our_class

    @property
    def has_metadata_topic(self) -> bool:
        """Whether the segments' metadata are in a topic of Kafka."""
        return self.remote_log_metadata_manager_class_name in {TOPIC_METADATA_MANAGER, KAFKAS_METADATA_MANAGER}

    @property
    def metadata_topic(self) -> str | None:
        """The name of the metadata topic if an option gives it one; it is never copied or trimmed."""
        return self.rlmm_config.get(METADATA_TOPIC_OPTION) if self.has_metadata_topic else None

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
    """The store, a GB (10^9 bytes) a month; all costs in one currency."""

    cost_store_write_thousand: OptionalPrice = setting(
        "cost.store.write.thousand", None, COSTS, Source.OURS, allowed=_ALLOWED_PRICE, default_text=_NOT_COUNTED
    )
    """A thousand writes of objects. A segment is three objects."""

    cost_store_read_thousand: OptionalPrice = setting(
        "cost.store.read.thousand", None, COSTS, Source.OURS, allowed=_ALLOWED_PRICE, default_text=_NOT_COUNTED
    )
    """A thousand reads of objects."""

    cost_transfer_gb: OptionalPrice = setting(
        "cost.transfer.gb", None, COSTS, Source.OURS, allowed=_ALLOWED_PRICE, default_text=_NOT_COUNTED
    )
    """A GB between the brokers and the store."""

    cost_disk_gb_month: OptionalPrice = setting(
        "cost.disk.gb.month", None, COSTS, Source.OURS, allowed=_ALLOWED_PRICE, default_text=_NOT_COUNTED
    )
    """The brokers' disks, a GB a month. Every replica counts."""
