"""Render pages from the templates of this package; every value is escaped unless it is Markup."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(template: str, **values: object) -> str:
    """Return the page: `template` filled with `values`."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tiered_storage_airflow"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {"number": number, "size": size, "moment": moment, "span": span}
    return environment


def number(value: int | None) -> str:
    """Return a number as people read it."""
    return "none" if value is None else f"{value:,}"


def size(value: int | None) -> str:
    """Return a number of bytes in a fitting unit."""
    if value is None:
        return "not known yet"
    amount, units = float(value), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:,.0f} {units[0]}" if units[0] == "bytes" else f"{amount:,.1f} {units[0]}"


def moment(timestamp: int | None) -> str:
    """Return a timestamp (ms) as text."""
    if timestamp is None or timestamp < 0:
        return "no time"
    try:
        return f"{datetime.fromtimestamp(timestamp / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{timestamp} ms"


def span(milliseconds: int) -> str:
    """Return a duration as text."""
    minutes = milliseconds // 60_000
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // 1440} days"
