"""The metadata store in a SQL database, by SQLAlchemy: one file of SQLite.

`store` opens it and has its parts, each of which implements a border of `tiered_storage.remote_log.metadata`. `engine`
is what they know of a database, `sqlite_database` what SQLite does its own way; `schema` has the tables.
"""

__all__ = [
    "schema",
    "schema_migrations",
    "sqlite_database",
    "store",
]
