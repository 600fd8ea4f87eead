"""What a field of a form takes."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import ParamValidationError

from tiered_storage_airflow.forms import fields


@pytest.mark.parametrize(
    ("field", "value", "is_taken"),
    [
        ("partitions", None, True),
        ("partitions", "", True),
        ("partitions", "0", True),
        ("partitions", "0,2-4, 7", True),
        ("partitions", "0,", False),
        ("partitions", "-1", False),
        ("partitions", "all", False),
        ("max_segments", None, True),
        ("max_segments", 1, True),
        ("max_segments", 0, False),
        ("max_segments", "many", False),
        ("dry_run", True, True),
        ("dry_run", "yes", False),
        ("topics", "orders|payments", True),
        ("topics", 7, False),
        ("topics", "orders(", False),
        ("settings", {"copy.window.bytes": 65536}, True),
        ("settings", "none", False),
        ("max_segments", 10**19, False),
    ],
)
def test_a_field_takes_what_can_be_meant(field: str, value: Any, is_taken: bool) -> None:
    form = {
        **fields.common_params(),
        "max_segments": fields.max_segments_param(),
        "dry_run": fields.dry_run_param("Only show the plan"),
    }
    param = form[field]
    if is_taken:
        assert param.resolve(value) == value
        return
    with pytest.raises(ParamValidationError):
        param.resolve(value)
