"""The form of the service's errors, and the HTTP status of each error of the library.

    {"title": "OffsetOutOfRange", "status": 416, "detail": "orders-0: offset 90 is …", "retriable": false, …}

as application/problem+json (RFC 9457). Status 416 is only for an offset outside of a partition's range, and for byte
ranges: after it a client may start over, which it must not do because an object is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from fastapi.responses import JSONResponse

from tiered_storage import errors

RETRY_AFTER_SECONDS = 5
MEDIA_TYPE = "application/problem+json"

_STATUS: tuple[tuple[type[errors.TieredStorageError], int], ...] = (
    (errors.RecordsDeletedError, 410),
    (errors.OffsetOutOfRangeError, 416),
    (errors.ReadTimedOutError, 504),
    (errors.ReadRefusedError, 429),
    (errors.UnsupportedTopicError, 409),
    (errors.FencedLeaderEpochError, 409),
    (errors.DivergingEpochError, 409),
    (errors.DeletionRefusedError, 403),
)
"""By class; all others are 503 if retriable, and else 502."""


@dataclass(eq=False)
class ProblemError(Exception):
    """Ends a request with this response."""

    status: int
    title: str
    detail: str
    retriable: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, object] = field(default_factory=dict)

    def response(self) -> JSONResponse:
        """Return it as a response."""
        content = {
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "retriable": self.retriable,
            **self.more,
        }
        return JSONResponse(content, self.status, headers=dict(self.headers), media_type=MEDIA_TYPE)


def problem_of(error: errors.TieredStorageError) -> ProblemError:
    """Return the client's view of `error`."""
    title = title_of(error)
    if isinstance(error, errors.ConfigurationError) and not isinstance(error, errors.UnsupportedTopicError):
        # Only the service's operators may see its message, which may name other topics, files and hosts.
        return ProblemError(502, "Misconfigured", "the service is misconfigured; its log has the reason")
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 503 if error.retriable else 502)
    more: dict[str, object] = {}
    if isinstance(error, errors.OffsetOutOfRangeError):
        more = {"log_start_offset": error.start, "log_end_offset": error.end}
    if isinstance(error, errors.LeaderEpochError):
        more = {"leader_epoch": error.known}
    if isinstance(error, errors.DivergingEpochError):
        more |= {"diverging_epoch": error.epoch, "end_offset": error.end_offset}
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if error.retriable else {}
    return ProblemError(status, title, str(error), error.retriable, headers, more)


def title_of(error: errors.TieredStorageError) -> str:
    """Return the name of `error` in responses."""
    return type(error).__name__.removesuffix("Error")


def busy(what: str) -> ProblemError:
    """Return the error for a service at its limit."""
    return ProblemError(429, "Busy", f"{what}; try again", True, {"Retry-After": str(RETRY_AFTER_SECONDS)})


def too_late(seconds: float) -> ProblemError:
    """Return the error for a request without a response within `seconds`."""
    detail = (
        f"no response within {seconds:g} s: the store, the metadata or a disk hangs or is slow; try again, or check "
        "each with 'tiered-storage doctor'"
    )
    return ProblemError(504, "TimedOut", detail, True, {"Retry-After": str(RETRY_AFTER_SECONDS)})


def not_found(detail: str) -> ProblemError:
    """Return the error for something that does not exist or that the user may not see."""
    return ProblemError(404, "NotFound", detail)


def plain(status: int, detail: str, headers: Mapping[str, str] | None = None) -> ProblemError:
    """Return a problem with the name of its status."""
    try:
        title = HTTPStatus(status).phrase.replace(" ", "")
    except ValueError:
        title = "Error"
    return ProblemError(status, title, detail, status in {429, 503, 504}, headers or {})
