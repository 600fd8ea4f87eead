"""What a field of a form takes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from airflow.sdk.exceptions import ParamValidationError

from tiered_storage_airflow.forms.topic_forms import RESTORE_FORM


@pytest.mark.parametrize(
    ("field", "value", "is_taken"),
    [
        ("from_offset", None, True),
        ("from_offset", "", True),
        ("from_offset", "10", True),
        ("to_offset", 0, True),
        ("to_offset", -1, False),
        ("from_offset", "abc", False),
        ("from_time", "yesterday", False),
        ("from_time", "1700000000000", True),
        ("from_time", "2026-11-21", True),
        ("to_time", "2026-11-21T20:00:00.5+01:00", True),
        ("to_time", "2026-11-21T20", True),
        ("to_time", "2026-11-21T20:00:00Z", True),
        ("target", "directory", True),
        ("target", "/var/lib/kafka", False),
        ("connection", "kafka_lab", True),
        ("connection", "localhost:9092", False),
        ("as_topic", "orders.back", True),
        ("as_topic", "orders/back", False),
        ("partitions", "0,2-4", True),
    ],
)
def test_a_field_of_a_restore_takes_what_can_be_meant(field: str, value: Any, is_taken: bool) -> None:
    # A parameter keeps what it was resolved to, and all tests share the form.
    param = deepcopy(RESTORE_FORM[field])
    if is_taken:
        assert param.resolve(value) == value
        return
    with pytest.raises(ParamValidationError):
        param.resolve(value)
