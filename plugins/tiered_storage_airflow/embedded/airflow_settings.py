"""Loads `airflow_settings.yaml` into Airflow's database, in one process and before the scheduler starts.

    python -m tiered_storage_airflow.embedded.airflow_settings FILE

Entries of the file replace existing ones; others stay. Importing this module imports Airflow, which looks for its
database at once: only this program imports it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from airflow.models.connection import Connection
from airflow.models.pool import Pool
from airflow.models.variable import Variable
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.orm import Session

from tiered_storage.errors import ConfigurationError
from tiered_storage_airflow.clusters import clusters
from tiered_storage_airflow.embedded.settings_file import AirflowSettings, ConnectionSettings, read_airflow_settings


def load(settings: AirflowSettings, session: Session) -> None:
    """Write every connection, pool and variable of `settings`, all or none: the caller's session commits."""
    for connection in settings.connections:
        _write_connection(connection, session)
    for pool in settings.pools:
        # Clusters without pools of their own share the first one's.
        for name in dict.fromkeys(cluster.pool(pool.pool_name) for cluster in clusters()):
            Pool.create_or_update_pool(
                name, pool.pool_slot, pool.pool_description, include_deferred=False, session=session
            )
    for variable in settings.variables:
        Variable.set(variable.variable_name, variable.variable_value, session=session)


def _write_connection(settings: ConnectionSettings, session: Session) -> None:
    former = session.scalar(select(Connection).where(Connection.conn_id == settings.conn_id))
    if former is not None:
        session.delete(former)
        session.flush()
    if settings.conn_uri:
        session.add(Connection(conn_id=settings.conn_id, uri=settings.conn_uri))
        return
    session.add(
        Connection(
            conn_id=settings.conn_id,
            conn_type=settings.conn_type,
            host=settings.conn_host,
            schema=settings.conn_schema,
            login=settings.conn_login,
            password=settings.conn_password,
            port=settings.conn_port,
            extra=settings.conn_extra,
        )
    )


def main(path: Path) -> None:
    """Load the file at `path` into the database that the environment names."""
    settings = read_airflow_settings(path)
    with create_session() as session:
        load(settings, session)
    sys.stdout.write(
        f"{path}: loaded {len(settings.connections)} connections, {len(settings.pools)} pools "
        f"and {len(settings.variables)} variables\n"
    )


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except ConfigurationError as error:
        sys.exit(str(error))
