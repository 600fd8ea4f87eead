"""How many examples hypothesis makes of a property: so many by day, and more of them at night."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

USUAL_EXAMPLES: Final = settings().max_examples
"""By the profile in use, see tests/conftest.py: a test whose examples cost more or less than others takes its share."""
