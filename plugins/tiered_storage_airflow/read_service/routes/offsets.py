"""The routes that return offsets by name and by time."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query

from tiered_storage.errors import InvalidLogDirectoryError
from tiered_storage.remote_log.read.read_values import OffsetSpec
from tiered_storage_airflow.read_service.partitions import Asked, DescribedDep
from tiered_storage_airflow.read_service.problem import title_of
from tiered_storage_airflow.read_service.routes.schemas import IsolationName, IsolationQuery, OffsetAnswer

router = APIRouter(tags=["offsets"])


class OffsetName(StrEnum):
    """The named offsets of Kafka's ListOffsets, by their names in URLs."""

    EARLIEST = "earliest"
    LATEST = "latest"
    MAX_TIMESTAMP = "max-timestamp"
    EARLIEST_LOCAL = "earliest-local"
    LATEST_TIERED = "latest-tiered"

    @property
    def spec(self) -> OffsetSpec:
        """The specification."""
        return OffsetSpec[self.name]


@router.get("/topics/{topic}/partitions/{partition}/offsets")
async def offsets(
    asked: DescribedDep, isolation: IsolationQuery = IsolationName.READ_UNCOMMITTED
) -> dict[str, OffsetAnswer]:
    """Return all named offsets; for those that depend on an unreadable local tier, the reason."""
    return {name.value: await _find_if_known(asked, name.spec, isolation) for name in OffsetName}


@router.get("/topics/{topic}/partitions/{partition}/offsets/by-time")
async def offset_by_time(
    asked: DescribedDep,
    timestamp: Annotated[int, Query(description="ms since 1970.", ge=0, le=2**63 - 1)],
    isolation: IsolationQuery = IsolationName.READ_UNCOMMITTED,
) -> OffsetAnswer:
    """Return the first offset whose record is at or after this time; null if there is none yet."""
    return await _find(asked, timestamp, isolation)


@router.get("/topics/{topic}/partitions/{partition}/offsets/{name}")
async def offset_by_name(
    asked: DescribedDep, name: OffsetName, isolation: IsolationQuery = IsolationName.READ_UNCOMMITTED
) -> OffsetAnswer:
    """Return one offset by its name."""
    return await _find(asked, name.spec, isolation)


async def _find_if_known(asked: Asked, spec: OffsetSpec, isolation: IsolationName) -> OffsetAnswer:
    try:
        return await _find(asked, spec, isolation)
    except InvalidLogDirectoryError as error:
        return OffsetAnswer(None, None, None, title_of(error))


async def _find(asked: Asked, spec: OffsetSpec | int, isolation: IsolationName) -> OffsetAnswer:
    return OffsetAnswer.of(await asked.service.tiers.offset(asked.partition, spec, isolation.level))
