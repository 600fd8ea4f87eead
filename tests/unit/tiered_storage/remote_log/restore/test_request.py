from __future__ import annotations

import pytest

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.restore.request import RestoreRequest, parse_time


@pytest.mark.parametrize(
    ("text", "time"),
    [
        (None, None),
        ("", None),
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-15T00:13:20.001+02:00", 1_700_000_000_001),
        ("2023-11-14", 1_699_920_000_000),
    ],
)
def test_times_are_read(text: str | None, time: int | None) -> None:
    assert parse_time("--from-time", text) == time


@pytest.mark.parametrize("text", ["9" * 5000, str(2**63), "0" * 20])
def test_a_number_that_no_time_is_as_large_as_is_refused_in_few_words(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--from-time ") as error:
        parse_time("--from-time", text)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("text", ["yesterday", "-1", "²", "2023-13-01"])
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--from-time: "):
        parse_time("--from-time", text)


@pytest.mark.parametrize(
    ("topic", "name"), [("orders", None), ("orders", "_orders"), ("__own", None), ("__own", "__own"), ("__own", "own")]
)
def test_a_topic_may_keep_its_name_or_take_one_that_is_not_reserved(topic: str, name: str | None) -> None:
    assert RestoreRequest(topic).named_as(name) == (name or topic)


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("orders", "__consumer_offsets"),
        ("orders", "__cluster_metadata"),
        ("orders", "__remote_log_metadata"),
        ("orders", "__anything"),
        ("__own", "__transaction_state"),
    ],
)
def test_a_topic_is_not_restored_as_one_of_kafkas_own(topic: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{topic}.*'{name}'"):
        RestoreRequest(topic).named_as(name)
