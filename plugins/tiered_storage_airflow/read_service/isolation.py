"""The isolation levels by which records are read, as Kafka's consumers name them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fastapi import Query

from tiered_storage.remote_log.read.read_values import Isolation


class IsolationName(StrEnum):
    """A level, by its name in addresses."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"

    @property
    def level(self) -> Isolation:
        """The level."""
        return Isolation[self.name]


IsolationQuery = Annotated[
    IsolationName, Query(description="Whether records of open and aborted transactions are given too.")
]
