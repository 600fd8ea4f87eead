"""The way to a Kafka cluster from an Airflow connection of the Kafka provider's type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

if TYPE_CHECKING:
    from tiered_storage.settings.settings import Settings


def properties_of(connection_id: str, setting: str, *, for_records: bool = False) -> dict[str, str]:
    """Return the client's properties (librdkafka's names) in the extra of a connection, which `setting` names.

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
            f"{where} of the setting {setting} does not exist: an administrator makes it, of the type kafka"
        ) from error
    if connection.conn_type != "kafka":
        raise AirflowFailException(f"{where} is of the type {connection.conn_type}: only kafka names a cluster")
    extra = connection.extra_dejson
    given = extra if isinstance(extra, Mapping) else {}
    kept = {name: value for name, value in given.items() if for_records or name not in FOR_RECORDS}
    return checked_properties(kept, f"{where}, extra")


def source_properties(settings: Settings) -> dict[str, str] | None:
    """Return the properties of the connection that cluster.connection names; None if it names none."""
    if settings.cluster_connection is None:
        return None
    return properties_of(settings.cluster_connection, "cluster.connection")
