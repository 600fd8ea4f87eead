from __future__ import annotations

import asyncio

import pytest

from tiered_storage_airflow.read_service.service import SingleFlight


def test_all_who_ask_at_once_or_soon_share_one_look() -> None:
    looks: list[int] = []

    async def look() -> int:
        looks.append(1)
        await asyncio.sleep(0.01)
        return len(looks)

    async def ask() -> list[int]:
        shared, fresh = SingleFlight[int](60), SingleFlight[int](-1)
        together = await asyncio.gather(*(shared.get(look) for _ in range(5)))
        return [*together, await shared.get(look), await fresh.get(look), await fresh.get(look)]

    assert asyncio.run(ask()) == [1, 1, 1, 1, 1, 1, 2, 3]


def test_a_look_that_fails_is_not_kept_and_one_who_leaves_ends_it_for_nobody() -> None:
    attempts: list[int] = []

    async def look() -> int:
        attempts.append(1)
        await asyncio.sleep(0.01)
        if len(attempts) == 1:
            raise OSError("for a while")
        return len(attempts)

    async def ask() -> int:
        shared = SingleFlight[int](60)
        with pytest.raises(OSError, match="for a while"):
            await shared.get(look)
        leaving = asyncio.ensure_future(shared.get(look))
        staying = asyncio.ensure_future(shared.get(look))
        await asyncio.sleep(0)
        leaving.cancel()
        return await staying

    assert asyncio.run(ask()) == 2
