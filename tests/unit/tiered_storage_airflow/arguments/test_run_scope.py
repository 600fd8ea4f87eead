from __future__ import annotations

import json

import pytest
from airflow.sdk.exceptions import AirflowFailException

from tiered_storage.settings import Settings
from tiered_storage_airflow.run_scope import NOT_BY_A_FORM, _properties, is_switched_on, whole_number


@pytest.mark.parametrize(
    ("value", "meant"), [(True, True), ("True", True), (" true ", True), (False, False), ("False", False)]
)
def test_a_switch_may_come_as_text(value: object, meant: bool) -> None:
    assert is_switched_on(value, "dry_run") is meant


@pytest.mark.parametrize("value", ["", "None", None, "yes", 1, "tru", "{{ params.dry_run }}"])
def test_a_switch_that_says_neither_is_refused(value: object) -> None:
    with pytest.raises(AirflowFailException, match=r"dry_run is .*, and can only be true or false"):
        is_switched_on(value, "dry_run")


def test_a_number_may_come_as_text_or_be_left_out() -> None:
    assert [whole_number(value, "max_segments") for value in (None, "", "None", 7, " 7 ")] == [None, None, None, 7, 7]
    for value in (0, -1, "0", "-3", "1.5", "seven", "\u00b2"):
        with pytest.raises(AirflowFailException, match="max_segments is"):
            whole_number(value, "max_segments")


def test_settings_may_come_as_json() -> None:
    assert _properties('{"copy.window.bytes": 65536}') == {"copy.window.bytes": 65536}
    assert _properties({"a": 1}) == {"a": 1}
    assert [_properties(value) for value in (None, "", "null")] == [None, None, None]
    for value in ("[1]", "7", "{"):
        with pytest.raises(AirflowFailException, match="settings"):
            _properties(value)


@pytest.mark.parametrize("name", NOT_BY_A_FORM)
def test_a_form_switches_off_nothing_that_is_safe_and_loads_no_code_but_a_dag_file_may(name: str) -> None:
    assert name in Settings.known_names()
    with pytest.raises(AirflowFailException, match=rf"settings: {name} cannot be set for one run"):
        _properties(json.dumps({"copy.window.bytes": 65536, name: None}))
    assert _properties({name: "a value"}) == {name: "a value"}
