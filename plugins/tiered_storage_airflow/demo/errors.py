"""What the demo raises when something did not turn out as promised."""

from __future__ import annotations

from tiered_storage.errors import TieredStorageError


class DemoError(TieredStorageError):
    """A step of the demo failed, or what was read is not what was written."""
