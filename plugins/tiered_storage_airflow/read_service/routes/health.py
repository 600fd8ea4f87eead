"""The health of the service: its metadata, store, rights and free places. No message names a topic or a path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.storage.listable_storage import as_listable
from tiered_storage_airflow.read_service.problem import ProblemError, problem_of
from tiered_storage_airflow.read_service.routes.schemas import HealthAnswer
from tiered_storage_airflow.read_service.service import HealthCheck, OpenService

SECONDS = 5.0


async def health(service: OpenService) -> HealthAnswer:
    """Return the state of metadata and store, at most a moment old, and the present state of the rest."""
    await service.rights_now()
    has_rights = service.rights.problem is None
    places = service.places
    has_room = places.streams < places.most_streams
    checks = [
        *await service.seen.health.get(lambda: _look(service)),
        HealthCheck(
            "rights", has_rights, "read" if has_rights else "nobody has any right; the service's log has the reason"
        ),
        HealthCheck(
            "room",
            has_room,
            f"{places.streams} of {places.most_streams} places for responses are taken",
        ),
    ]
    return HealthAnswer(all(check.ok for check in checks), checks)


async def _look(service: OpenService) -> list[HealthCheck]:
    """Query metadata and store, each for at most SECONDS."""
    return list(
        await asyncio.gather(
            _check(service, "metadata", service.log.store.identity.bound_store_uuid),
            _check(service, "store", lambda: _ask_store(service.log)),
        )
    )


async def _check(service: OpenService, name: str, ask: Callable[[], object]) -> HealthCheck:
    try:
        async with asyncio.timeout(SECONDS):
            await service.threads.looking[name].run(ask)
    except TimeoutError:
        return HealthCheck(name, False, f"no response within {SECONDS:g} s")
    except ProblemError:
        return HealthCheck(name, False, "an earlier query still has no response")
    except TieredStorageError as error:
        return HealthCheck(name, False, f"{problem_of(error).title}; the service's log has the reason")
    return HealthCheck(name, True, "answers")


def _ask_store(log: RemoteLogManager) -> None:
    """Ask the store for its first object."""
    if (storage := as_listable(log.storage)) is not None:
        next(iter(storage.list_objects()), None)
