"""What can go wrong while the embedded Airflow is started, asked or stopped."""

from __future__ import annotations

from tiered_storage.errors import TieredStorageError


class EmbeddedAirflowError(TieredStorageError):
    """A service of the embedded Airflow did not start, answer or end as it should."""
