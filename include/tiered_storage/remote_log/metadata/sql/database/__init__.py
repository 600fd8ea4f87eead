"""The SQL database that holds the metadata: how it is opened, and its tables.

`engine` is what the metadata know of a database, and `sqlite_database` what SQLite does its own way. `schema` has the
tables, and `schema_migrations` brings older ones up to date.
"""

__all__ = ["engine", "schema", "schema_migrations", "sqlite_database"]
