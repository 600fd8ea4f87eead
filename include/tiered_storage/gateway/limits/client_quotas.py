"""How many remote bytes a client gets each second: a token bucket for each user and client id.

The bucket holds what a client may take in one second. A Fetch takes the bytes left, but at least one batch if any is
left; the excess is a debt. While there is one, the connection is muted, for the throttle time that its answer names,
and no other connection of the client gets remote records.

Source: KIP-13, KIP-219.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tiered_storage.kafka_log.log.log_config import INT64_MAX

_MOST_REMEMBERED: Final = 10_000
"""Clients whose buckets are kept. The one that was idle longest begins with a full one if it comes again."""


class ClientName(NamedTuple):
    """Who reads: the user that logged in, "" if that is not known, and what the client calls itself."""

    user: str
    client_id: str


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float
    """When `tokens` were counted, in seconds."""


class ClientQuotas:
    """What each client took. For one event loop."""

    def __init__(self, bytes_per_second: int | None, now: Callable[[], float] = time.monotonic) -> None:
        """Grant each client `bytes_per_second`; None: all that it wants. `now` is in seconds."""
        self._rate = bytes_per_second
        self._now = now
        self._buckets: OrderedDict[ClientName, _Bucket] = OrderedDict()

    def room(self, client: ClientName) -> int:
        """Return how many bytes the client may take now."""
        return INT64_MAX if self._rate is None else max(math.ceil(self._bucket(client, self._rate).tokens), 0)

    def take(self, client: ClientName, size: int) -> int:
        """Count `size` bytes, and return for how many milliseconds the client is muted."""
        if self._rate is None:
            return 0
        bucket = self._bucket(client, self._rate)
        bucket.tokens -= size
        return math.ceil(max(-bucket.tokens, 0) / self._rate * 1000)

    def _bucket(self, client: ClientName, rate: int) -> _Bucket:
        now = self._now()
        bucket = self._buckets.get(client)
        if bucket is None:
            bucket = self._buckets[client] = _Bucket(float(rate), now)
            if len(self._buckets) > _MOST_REMEMBERED:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(client)
        bucket.tokens = min(float(rate), bucket.tokens + rate * (now - bucket.at))
        bucket.at = now
        return bucket
