"""From an Airflow connection to the options of a store, or to the properties of a Kafka cluster's client.

Its type decides how it is read, or else the store's URL: a connection of the store's usual type is read as that
provider's own hook reads it. Credentials come from one place: what a connection gives replaces the environment's.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.storage.clients.options import HADOOP_SETTINGS, HDFS_USER
from tiered_storage_airflow.clusters import Cluster

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
    from tiered_storage.settings.settings import Settings

_WEB_IDENTITY = "assume_role_with_web_identity"
_log = logging.getLogger(__name__)


def find_connection(conn_id: str, default: str, cluster: str | None) -> Connection | None:
    """Return the connection of a hook: the cluster's own (`{conn_id}__{cluster}`), or else that of all clusters.

    Returns None if neither exists and `conn_id` is the hook's `default`. Raises AirflowFailException if it is another.
    """
    names = list(dict.fromkeys((Cluster(cluster).named(conn_id), conn_id)))
    for name in names:
        try:
            found = BaseHook.get_connection(name)
        except AirflowNotFoundException:
            continue
        _log.info("using the connection %s", name)
        return found
    if conn_id != default:
        raise AirflowFailException(
            f"there is no connection {' or '.join(names)}: create it, or correct the id in the DAG file"
        )
    _log.info("there is no connection %s", " or ".join(names))
    return None


def connection_options(connection: Connection, store_url: str, environment: ObjectStoreOptions) -> ObjectStoreOptions:
    """Return how to reach the store at `store_url` by `connection`, with `environment` for what that leaves out.

    Raises ConfigurationError for a connection of another store's type, and for one with an option that we do not
    support.
    """
    scheme, usual = urlsplit(store_url).scheme, _USUAL_TYPES.get(connection.conn_type or "")
    if usual is not None and scheme in _READERS and usual != scheme:
        raise ConfigurationError(
            f"the connection {connection.conn_id} is of type {connection.conn_type}, and the store is "
            f"{scheme}://…: use one of the store's usual type, or of type remote_storage"
        )
    return _READERS.get(usual or scheme, _aws)(connection, environment, store_url)


def _aws(connection: Connection, environment: ObjectStoreOptions, _: str) -> ObjectStoreOptions:
    from airflow.providers.amazon.aws.utils.connection_wrapper import AwsConnectionWrapper

    extra = connection.extra_dejson
    found = AwsConnectionWrapper.from_connection_metadata(
        connection.conn_id, connection.login, connection.password, extra
    )
    named = {
        "endpoint": found.get_service_endpoint_url("s3") or connection.host,
        "sts_endpoint": found.get_service_endpoint_url("sts", sts_connection_assume=True),
        "region": found.region_name,
        "ca_bundle": _ca_bundle(connection, found.verify),
        "roles": tuple(role.strip() for role in (found.role_arn or "").split(",") if role.strip()),
        "role_arguments": found.assume_role_kwargs,
        "web_identity_token_file": _token_file(connection, found.assume_role_method),
        "profile": found.profile_name,
    }
    given: dict[str, Any] = {name: value for name, value in named.items() if value}
    if {"addressing_style": "virtual"}.items() <= (getattr(found.botocore_config, "s3", None) or {}).items():
        given["path_style"] = False
    keys = {
        # Where the wrapper finds no pair, one half of it must not be completed from the environment.
        "access_key_id": found.aws_access_key_id or connection.login or None,
        "secret_access_key": found.aws_secret_access_key,
        "session_token": found.aws_session_token,
    }
    if any(keys.values()) or "profile" in given or "web_identity_token_file" in given:
        given |= keys
    return replace(environment, **given)


def _ca_bundle(connection: Connection, verify: bool | str | None) -> str | None:
    if verify is False:
        raise ConfigurationError(
            f"the connection {connection.conn_id} sets verify=false, which Remote Log does not support: set verify in "
            "its extra to the file with the CA's certificate"
        )
    return verify if isinstance(verify, str) else None


def _token_file(connection: Connection, method: str | None) -> str | None:
    if method in {None, "assume_role"}:
        return None
    extra = connection.extra_dejson
    token_file = extra.get(f"{_WEB_IDENTITY}_token_file")
    if method == _WEB_IDENTITY and extra.get(f"{_WEB_IDENTITY}_federation") == "file" and token_file:
        return str(token_file)
    raise ConfigurationError(
        f"the connection {connection.conn_id} asks for {method}: Remote Log assumes roles with keys, with the "
        f"machine's own identity, or with a token from {_WEB_IDENTITY}_token_file ({_WEB_IDENTITY}_federation: file)"
    )


def _azure(connection: Connection, environment: ObjectStoreOptions, _: str) -> ObjectStoreOptions:
    extra = {name.removeprefix("extra__wasb__"): value for name, value in connection.extra_dejson.items() if value}
    text = dict(part.partition("=")[::2] for part in str(extra.get("connection_string", "")).split(";"))
    host = extra.get("endpoint_url") or connection.host or ""
    tenant = extra.get("tenant_id")
    # With a tenant, login and password are those of an application, and the host names the account.
    account = (urlsplit(host).hostname or host).partition(".")[0] if tenant else connection.login
    named = {
        "account_name": text.get("AccountName") or account,
        "account_key": text.get("AccountKey") or extra.get("shared_access_key") or (not tenant and connection.password),
        "sas_key": text.get("SharedAccessSignature") or str(extra.get("sas_token", "")).rpartition("?")[2],
        "endpoint": text.get("BlobEndpoint", "").rstrip("/") or ("://" in host and host.rstrip("/")),
        "tenant_id": tenant or extra.get("workload_identity_tenant_id"),
        "client_id": (tenant and connection.login) or extra.get("managed_identity_client_id"),
        "client_secret": tenant and connection.password,
    }
    others = {name: value for name, value in environment.properties.items() if not name.startswith("azure_")}
    azure = {f"azure_storage_{name}": str(value) for name, value in named.items() if value}
    # Otherwise obstore would put a key of the environment before the connection's token.
    for name, kind in _AZURE_CREDENTIALS.items():
        if named[name]:
            azure["azure_credential_type"] = kind
    return replace(environment, properties=others | (azure or dict(environment.properties)))


_AZURE_CREDENTIALS = {
    "client_id": "managed_identity",
    "client_secret": "client_secret",
    "sas_key": "sas_token",
    "account_key": "access_key",
}
"""obstore's credential type by field; if several are set, the last wins."""


def _google(connection: Connection, environment: ObjectStoreOptions, _: str) -> ObjectStoreOptions:
    import json

    extra = {
        name.removeprefix("extra__google_cloud_platform__"): value
        for name, value in connection.extra_dejson.items()
        if value
    }
    key = extra.get("keyfile_dict")
    named = {
        "google_service_account_key": json.dumps(key) if isinstance(key, dict) else key,
        "google_service_account": extra.get("key_path"),
    }
    return replace(
        environment, properties={**environment.properties, **{name: value for name, value in named.items() if value}}
    )


def _hdfs(connection: Connection, environment: ObjectStoreOptions, store_url: str) -> ObjectStoreOptions:
    """Read user, NameNodes and Hadoop's settings. A URL without a port is a name service of the connection's hosts."""
    service = urlsplit(store_url).netloc
    named = {} if ":" in service else _name_nodes(connection, service)
    if connection.login:
        named[HDFS_USER] = connection.login
    settings = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in connection.extra_dejson.items()
        if name.startswith(HADOOP_SETTINGS)
    }
    return replace(environment, properties={**environment.properties, **named, **settings})


def _name_nodes(connection: Connection, service: str) -> dict[str, str]:
    """Return where the NameNodes of `service` are. The port of a webhdfs connection is one for HTTP."""
    if not connection.host:
        return {}
    hosts = [host.strip() for host in connection.host.split(",")]
    if not all(re.fullmatch(r"[A-Za-z0-9._-]+", host) for host in hosts):
        raise ConfigurationError(
            f"the connection {connection.conn_id} names no hosts of NameNodes in its host: give names alone, with "
            "commas between them, and the port in the field for it"
        )
    port = (connection.conn_type != "webhdfs" and connection.port) or _NAME_NODE_PORT
    members = {f"nn{number}": f"{host}:{port}" for number, host in enumerate(hosts)}
    return {
        f"dfs.ha.namenodes.{service}": ",".join(members),
        **{f"dfs.namenode.rpc-address.{service}.{member}": address for member, address in members.items()},
    }


_NAME_NODE_PORT = 8020
"""Where NameNodes answer RPC by default."""

_READERS: dict[str, Callable[[Connection, ObjectStoreOptions, str], ObjectStoreOptions]] = {
    "s3": _aws,
    "az": _azure,
    "gs": _google,
    "hdfs": _hdfs,
}
"""Functions that read a connection, by the scheme of the store's URL."""

_USUAL_TYPES = {"aws": "s3", "wasb": "az", "google_cloud_platform": "gs", "hdfs": "hdfs", "webhdfs": "hdfs"}
"""The scheme of the stores that a connection's type is for; other types are for any store."""


def properties_of(connection_id: str, named_by: str, *, for_records: bool = False) -> dict[str, str]:
    """Return the client's properties (librdkafka's names) in the extra of a connection; messages say what it is
    `named_by`, such as "the setting cluster.connection".

    Unless `for_records`, those of producers and consumers are left out; else they are refused. Raises
    AirflowFailException if the connection does not exist or is of another type, ConfigurationError for a property that
    is refused.
    """
    from tiered_storage.kafka_wire.connections.client_properties import FOR_RECORDS, checked_properties

    where = f"connection {connection_id}"
    try:
        connection = BaseHook.get_connection(connection_id)
    except AirflowNotFoundException as error:
        raise AirflowFailException(
            f"{where} of {named_by} does not exist: an administrator makes it, of the type kafka"
        ) from error
    if connection.conn_type != "kafka":
        raise AirflowFailException(f"{where} is of the type {connection.conn_type}: only kafka names a cluster")
    extra = connection.extra_dejson
    given = extra if isinstance(extra, Mapping) else {}
    kept = {name: value for name, value in given.items() if for_records or name not in FOR_RECORDS}
    return checked_properties(kept, f"{where}, extra")


def source_properties(settings: Settings, named_by: str = "the setting cluster.connection") -> dict[str, str] | None:
    """Return the properties of the connection that cluster.connection names; None if it names none.

    Messages say that it is `named_by` something else, if that has set it.
    """
    if settings.cluster_connection is None:
        return None
    return properties_of(settings.cluster_connection, named_by)
