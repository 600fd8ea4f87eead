"""What holds for a topic: its own properties, the defaults, and what cannot be meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.command_line import mentions
from tiered_storage.errors import ConfigurationError, UnsupportedTopicError
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.tiering_policy import effective, refuse_compacted, seed
from tiered_storage.settings.settings import Settings, load_settings
from tiered_storage.settings.topics import TopicSettings

Load = Callable[[str], Settings]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load_text(text: str) -> Settings:
        path = tmp_path / "settings.yaml"
        path.write_text(text)
        return load_settings(path, environ={})

    return load_text


def decisions(resolved: TopicSettings) -> tuple[bool, bool, bool]:
    return resolved.remote_storage_enable, resolved.local_deletion_allowed, resolved.remote_deletion_allowed


def topic(**properties: str) -> Topic:
    return Topic(
        "cluster", "id", "orders", properties={name.replace("_", "."): properties[name] for name in properties}
    )


def test_properties_are_read_as_text_number_or_switch() -> None:
    properties: dict[str, str | int | bool] = {
        "remote.storage.enable": True,
        "retention.ms": 60_000,
        "local.retention.ms": "1000",
        "remote.log.copy.disable": "true",
        "cleanup.policy": "delete",
    }
    parsed = TopicSettings.parse("orders", properties)
    assert parsed.remote_storage_enable is True
    assert parsed.remote_log_copy_disable is True
    assert (parsed.retention_ms, parsed.local_retention_ms) == (60_000, 1000)


def test_unset_properties_have_kafkas_defaults() -> None:
    parsed = TopicSettings.parse("orders", {})
    assert (parsed.retention_ms, parsed.retention_bytes) == (604_800_000, -1)
    assert (parsed.local_retention_ms, parsed.local_retention_bytes) == (-2, -2)
    assert (parsed.remote_storage_enable, parsed.is_compacted) == (False, False)
    assert (parsed.local_deletion_allowed, parsed.remote_deletion_allowed) == (False, False)


def test_the_drafts_names_are_aliases_of_the_released_ones() -> None:
    parsed = TopicSettings.parse(
        "orders",
        {"remote.log.storage.enable": "true", "remote.log.retention.minutes": 2, "remote.log.retention.bytes": 5},
    )
    assert (parsed.remote_storage_enable, parsed.retention_ms, parsed.retention_bytes) == (True, 120_000, 5)


def test_the_newer_of_two_generations_wins_and_reports_it() -> None:
    parsed = TopicSettings.parse("orders", {"remote.log.retention.bytes": 5, "retention.bytes": 6})
    assert parsed.retention_bytes == 6
    [notice] = parsed.notices
    assert mentions(notice, "topic orders", "remote.log.retention.bytes is not used", " retention.bytes ")


@pytest.mark.parametrize("allowed", [True, False])
def test_the_older_right_implies_both_new_ones(load: Load, allowed: bool) -> None:
    parsed = TopicSettings.parse("orders", {"deletion.allowed": allowed})
    assert (parsed.local_deletion_allowed, parsed.remote_deletion_allowed) == (allowed, allowed)
    settings = load(f"topics: {{orders: {{deletion.allowed: {str(allowed).lower()}}}}}")
    assert seed("c", "id", "orders", settings) == Topic("c", "id", "orders", False, allowed, allowed)


@pytest.mark.parametrize("newer", ["local.deletion.allowed", "remote.deletion.allowed"])
@pytest.mark.parametrize("allowed", [True, False])
def test_the_older_right_beside_a_newer_one_is_refused(load: Load, newer: str, allowed: bool) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TopicSettings.parse("orders", {"deletion.allowed": allowed, newer: allowed})
    assert mentions(str(caught.value), "topic orders: deletion.allowed ", newer)
    text = f"topics:\n  orders:\n    deletion.allowed: {allowed}\n    {newer}: {allowed}\n"
    with pytest.raises(ConfigurationError, match=rf"settings\.yaml, line 3: topic orders: deletion\.allowed .*{newer}"):
        load(text)


def test_a_wrong_value_of_the_older_right_is_reported_under_its_name() -> None:
    with pytest.raises(ConfigurationError, match=r"deletion\.allowed is 'perhaps'.*local\.deletion"):
        TopicSettings.parse("orders", {"deletion.allowed": "perhaps"})


def test_everything_that_is_wrong_with_a_topic_is_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        TopicSettings.parse("orders", {"retention.mss": 5, "retention.bytes": 0, "remote.storage.enable": 7})
    head, *problems = str(caught.value).split("\n  ")
    assert head.startswith("3 settings ")
    enable, size, unknown = (each.removeprefix("topic orders: ") for each in problems)
    assert enable.startswith("remote.storage.enable is 7; allowed: true")
    assert size.startswith("retention.bytes is 0: ")
    assert "; allowed: " in size
    assert unknown.startswith("retention.mss is not ")
    assert unknown.endswith("retention.ms?")


@pytest.mark.parametrize(("total", "local"), [("5", "6"), ("5", "-1"), ("9223372036854775806", "9223372036854775807")])
def test_more_local_than_in_total_is_refused(total: str, local: str) -> None:
    for limit in ("retention.ms", "retention.bytes"):
        with pytest.raises(ConfigurationError, match=rf"topic orders: local\.{limit} .* {limit}, {total}"):
            TopicSettings.parse("orders", {limit: total, f"local.{limit}": local})


@pytest.mark.parametrize(("total", "local"), [("5", "5"), ("5", "0"), ("5", "-2"), ("-1", "-1"), ("-1", "7")])
def test_as_much_local_as_in_total_or_less_is_accepted(total: str, local: str) -> None:
    for limit in ("retention.ms", "retention.bytes"):
        TopicSettings.parse("orders", {limit: total, f"local.{limit}": local})


def test_the_local_limit_is_only_held_against_a_total_that_is_set_or_resolved(load: Load) -> None:
    settings = load("log.retention.ms: -1\ntopics: {orders: {local.retention.ms: 2592000000}}")
    assert settings.topics["orders"].over(settings.topic_defaults(), "orders").local_retention_ms == 2_592_000_000


def test_a_topic_without_properties_has_the_defaults_with_minus_two_resolved(load: Load) -> None:
    settings = load("log.retention.ms: 5000\nlog.local.retention.bytes: 70\n")
    for resolved in (effective(None, settings), effective(topic(), settings)):
        assert (resolved.retention_ms, resolved.local_retention_ms) == (5000, 5000)
        assert (resolved.retention_bytes, resolved.local_retention_bytes) == (-1, 70)
        assert decisions(resolved) == (False, False, False)


def test_a_topics_own_properties_win_over_the_defaults(load: Load) -> None:
    settings = load("log.retention.ms: 5000\nlog.local.retention.ms: 400\n")
    resolved = effective(topic(retention_ms="6000", local_retention_ms="-2", cleanup_policy="delete"), settings)
    assert (resolved.retention_ms, resolved.local_retention_ms) == (6000, 6000)
    assert effective(topic(retention_ms="6000"), settings).local_retention_ms == 400


def test_a_topics_total_below_the_default_local_limit_is_refused(load: Load) -> None:
    settings = load("log.local.retention.ms: 400000")
    with pytest.raises(
        ConfigurationError,
        match=r"topic orders, .*local\.retention\.ms .*400000, .*retention\.ms, 300000",
    ):
        effective(topic(retention_ms="300000"), settings)


def test_only_a_decision_enables_a_topic_or_allows_deletion(load: Load) -> None:
    for name in ("deletion.allowed", "local.deletion.allowed", "remote.deletion.allowed"):
        sneaky = Topic("c", "id", "orders", properties={name: "true", "remote.storage.enable": "true"})
        assert decisions(effective(sneaky, load(""))) == (False, False, False)
    for rights in ((True, False), (False, True), (True, True)):
        assert decisions(effective(Topic("c", "id", "orders", True, *rights), load(""))) == (True, *rights)


def test_a_seed_is_what_the_file_says_of_the_name(load: Load) -> None:
    settings = load(
        "topics:\n  orders:\n    remote.storage.enable: true\n    remote.deletion.allowed: true\n"
        "    remote.log.copy.disable: true\n    remote.log.retention.minutes: 2\n  payments:\n"
    )
    properties = {"remote.log.copy.disable": "true", "retention.ms": "120000"}
    assert seed("c", "id", "orders", settings) == Topic("c", "id", "orders", True, False, True, properties)
    assert seed("c", "id", "payments", settings) == Topic("c", "id", "payments")
    assert seed("c", "id", "others", settings) == Topic("c", "id", "others")


def test_a_seed_resolves_to_what_the_file_says(load: Load) -> None:
    settings = load("topics: {orders: {retention.ms: 5, local.retention.bytes: 7, remote.storage.enable: true}}")
    resolved = effective(seed("c", "id", "orders", settings), settings)
    assert (resolved.retention_ms, resolved.local_retention_ms, resolved.local_retention_bytes) == (5, 5, 7)
    assert resolved.remote_storage_enable is True


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete, compact"])
def test_a_compacted_topic_is_refused_by_name_with_the_reason(policy: str) -> None:
    compacted = TopicSettings.parse("orders", {"cleanup.policy": policy})
    with pytest.raises(UnsupportedTopicError, match=r"orders .*cleanup\.policy=compact"):
        refuse_compacted("orders", compacted)


def test_a_topic_that_is_only_deleted_from_is_not_refused() -> None:
    refuse_compacted("orders", TopicSettings.parse("orders", {"cleanup.policy": "delete"}))


def test_every_property_is_described() -> None:
    for declaration in TopicSettings.declarations().values():
        assert declaration.description, declaration.name
        assert declaration.default, declaration.name
