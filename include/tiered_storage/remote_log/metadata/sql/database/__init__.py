"""The SQL database that holds the metadata: how it is opened, and its tables.

`engine` is what the metadata know of a database; `sqlite_database` and `postgres_database` are what each does its own
way, and `database_kinds` finds them by URL. `schema` has the tables, `schema_migrations` brings older ones up to date,
and `moving` fills a database with the metadata of another one.
"""

__all__ = [
    "database_kinds",
    "engine",
    "moving",
    "postgres_database",
    "row_copies",
    "schema",
    "schema_migrations",
    "sqlite_database",
]
