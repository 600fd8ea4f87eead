"""Who the metadata store is, and which object store it belongs to: the two carry one another's UUID."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from tiered_storage.errors import MetadataCorruptError, StoreMismatchError
from tiered_storage.remote_log.metadata.sql_engine import Database, insert_missing
from tiered_storage.remote_log.metadata.sql_schema import store_identity


class StoreIdentity:
    """The metadata store's UUID, given when it was made, and that of the object store it is bound to, for good."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def metadata_uuid(self) -> str:
        """This metadata store's own UUID."""
        with self._database.reading() as connection:
            return self._read(connection)[0]

    def bound_store_uuid(self) -> str | None:
        """Return the UUID of the object store that this metadata describes; None where none was bound yet."""
        with self._database.reading() as connection:
            return self._read(connection)[1]

    def bind_store(self, uuid: str) -> None:
        """Belong to the object store `uuid` from now on; binding the same again does nothing.

        Raises StoreMismatchError where another one is bound.
        """
        with self._database.writing() as connection:
            own, bound = self._read(connection)
            if bound == uuid:
                return
            if bound is not None:
                raise StoreMismatchError(
                    f"{self._database.where}: metadata store {own} belongs to object store {bound}, not to {uuid}: "
                    "point the settings at the pair that belongs together; nothing is deleted until they match"
                )
            connection.execute(update(store_identity).values(bound_store_uuid=uuid))

    def _read(self, connection: Connection) -> tuple[str, str | None]:
        # Locked on a database with row locks, so that two cannot bind at once.
        row = connection.execute(select(store_identity).with_for_update()).one_or_none()
        if row is None:
            raise MetadataCorruptError(
                f"{self._database.where}: the metadata store's own UUID is gone: restore the store from its backup"
            )
        return row.metadata_uuid, row.bound_store_uuid


def give_identity(connection: Connection, metadata_uuid: str) -> None:
    """Name a new metadata store; one that has a name keeps it."""
    insert_missing(connection, store_identity, [{"id": 1, "metadata_uuid": metadata_uuid, "bound_store_uuid": None}])
