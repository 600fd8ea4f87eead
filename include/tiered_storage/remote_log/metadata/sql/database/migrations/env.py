"""Alembic's entry: runs the revisions on the connection, and in the transaction, of schema_migrations.upgrade()."""

from __future__ import annotations

from alembic import context

from tiered_storage.remote_log.metadata.sql.database.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    # SQLite rolls its DDL back too: a migration that breaks off leaves the store as it was.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
