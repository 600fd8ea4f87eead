"""Options of a storage or metadata manager of one's own: handed over as they are; ours stay strict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.context import metadata_configs
from tiered_storage.remote_log.metadata.metadata_store import MetadataStoreFactory
from tiered_storage.remote_log.metadata.topic.cluster.options import TopicOptions
from tiered_storage.settings.own_managers import KAFKAS_METADATA_MANAGER, METADATA_WRITE_OPTION, TOPIC_METADATA_MANAGER
from tiered_storage.settings.settings import WHERE_METADATA_ARE, Settings, load_settings

OWN = "remote.log.storage.manager.class.name: package.storage.Own\n"
OWN_METADATA = "remote.log.metadata.manager.class.name: package.metadata.Own\n"


def load(folder: Path, text: str, **overrides: object) -> Settings:
    file = folder / "settings.yaml"
    file.write_text(text)
    given = {name.replace("_", "."): value for name, value in overrides.items()}
    return load_settings(file, environ={}, overrides=given)


def test_another_class_gets_all_options_as_text_without_the_prefix(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        OWN + "rsm.config.chunk.size: 0x10\nrsm.config.on: yes\nrsm.config.list: [a, 'b']\nrsm.config.none:\n"
        "rsm.config.url: own://there/\nrsm.config.region: here\n",
        rsm_config_retries=3,
        rsm_config_fast=True,
    )

    assert settings.rsm_config == {
        "chunk.size": "0x10",
        "on": "yes",
        "list": "a,b",
        "none": "",
        "url": "own://there/",
        "region": "here",
        "retries": "3",
        "fast": "true",
    }
    assert (settings.rsm_config_url, settings.rsm_config_region) == ("own://there", "here")
    assert settings.has_own_storage_manager
    assert settings.rlmm_config == {}


def test_another_prefix_keeps_the_options_apart_from_ours(tmp_path: Path) -> None:
    prefix = "remote.log.storage.manager.impl.prefix: mine.\n"

    settings = load(tmp_path, OWN + prefix + "mine.url: anything\nmine.x: '1'\nrsm.config.region: here\n")

    assert settings.rsm_config == {"url": "anything", "x": "1"}
    assert settings.rsm_config_region == "here"
    with pytest.raises(ConfigurationError, match=r"line 3: rsm\.config\.regoin .*rsm\.config\.region"):
        load(tmp_path, OWN + prefix + "rsm.config.regoin: here\n")


def test_an_option_that_our_class_does_not_have_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"line 1: rsm\.config\.regoin .*rsm\.config\.region"):
        load(tmp_path, "rsm.config.regoin: here\n")
    with pytest.raises(ConfigurationError, match=r"rlmm\.config\.ulr .*rlmm\.config\.url"):
        load(tmp_path, "rlmm.config.ulr: here\n")


def test_our_class_takes_its_options_by_another_prefix(tmp_path: Path) -> None:
    prefix = "remote.log.storage.manager.impl.prefix: mine.\n"

    settings = load(tmp_path, prefix + "mine.url: s3://bucket/prefix\nmine.path.style.access: false\n")

    assert settings.rsm_config_url == "s3://bucket/prefix"
    assert not settings.rsm_config_path_style_access
    assert settings.rsm_config == {}
    with pytest.raises(ConfigurationError, match=r"line 2: mine\.url is 's3://'"):
        load(tmp_path, prefix + "mine.url: s3://\n")
    with pytest.raises(ConfigurationError, match=r"line 2: .*rsm\.config\.region"):
        load(tmp_path, prefix + "mine.regoin: here\n")


def test_another_metadata_manager_gets_kafkas_names_too(tmp_path: Path) -> None:
    settings = load(
        tmp_path, OWN_METADATA + "rlmm.config.remote.log.metadata.topic.num.partitions: 7\nrlmm.config.url: own://x\n"
    )

    assert settings.rlmm_config == {"remote.log.metadata.topic.num.partitions": "7", "url": "own://x"}
    assert settings.rlmm_config_url.get_secret_value() == "own://x"
    assert settings.notices == ()
    assert settings.has_own_metadata_manager


@pytest.mark.parametrize("name", [TOPIC_METADATA_MANAGER, KAFKAS_METADATA_MANAGER])
def test_a_metadata_topic_is_named_by_our_class_or_by_kafkas(tmp_path: Path, name: str) -> None:
    options = "rlmm.config.remote.log.metadata.topic.num.partitions: 7\nbootstrap.servers: a:9092\n"
    settings = load(tmp_path, f"remote.log.metadata.manager.class.name: {name}\n{options}")

    configs = metadata_configs(settings)

    assert settings.has_metadata_topic
    assert MetadataStoreFactory.load(name, ()).name == TOPIC_METADATA_MANAGER
    assert configs == {
        "remote.log.metadata.topic.num.partitions": "7",
        "remote.log.metadata.common.client.bootstrap.servers": "a:9092",
        "remote.log.metadata.cache.directory": str(settings.state_directory / "metadata-topic"),
        "remote.log.metadata.producer.message.timeout.ms": "300000",
    }


def test_a_record_of_the_metadata_topic_is_dropped_before_the_lease_of_its_writer_ends(tmp_path: Path) -> None:
    """If it arrived later, it could undo what the next holder did."""
    settings = load(
        tmp_path,
        f"remote.log.metadata.manager.class.name: {KAFKAS_METADATA_MANAGER}\nlease.duration.ms: 40000\n"
        "bootstrap.servers: a:9092\n",
    )

    assert TopicOptions.of(metadata_configs(settings)).write_wait_ms == 20_000


def test_an_option_of_the_metadata_topics_client_comes_before_the_clusters(tmp_path: Path) -> None:
    own = "rlmm.config.remote.log.metadata.common.client.client.id: b\nbootstrap.servers: a:9092\n"
    settings = load(tmp_path, f"remote.log.metadata.manager.class.name: {KAFKAS_METADATA_MANAGER}\n{own}")

    configs = metadata_configs(settings, {"sasl.username": "me", "client.id": "a"})

    assert configs["remote.log.metadata.common.client.bootstrap.servers"] == "a:9092"
    assert configs["remote.log.metadata.common.client.client.id"] == "b"
    assert configs["remote.log.metadata.common.client.sasl.username"] == "me"


@pytest.mark.parametrize("role", ["common.client", "producer"])
def test_a_metadata_topic_on_another_cluster_does_not_get_the_clusters_login(tmp_path: Path, role: str) -> None:
    own = {f"remote.log.metadata.{role}.bootstrap.servers": "b:9092", "remote.log.metadata.cache.directory": "/cache"}
    named = "".join(f"rlmm.config.{name}: {value}\n" for name, value in own.items())
    settings = load(
        tmp_path,
        f"remote.log.metadata.manager.class.name: {KAFKAS_METADATA_MANAGER}\n{named}bootstrap.servers: a:9092\n",
    )

    configs = metadata_configs(settings, {"sasl.username": "me", "sasl.password": "secret", "ssl.key.location": "/key"})

    assert configs == own | {METADATA_WRITE_OPTION: "300000"}


def test_metadata_are_found_though_other_settings_are_wrong(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(OWN_METADATA + "rlmm.config.x: '1'\nno.such.setting: 1\nrsm.config.url: '://'\n")

    settings = load_settings(file, environ={}, only=WHERE_METADATA_ARE)

    assert settings.rlmm_config == {"x": "1"}
    assert settings.has_own_metadata_manager


def test_options_may_be_secrets(tmp_path: Path) -> None:
    settings = load(tmp_path, OWN + OWN_METADATA + "rsm.config.account: hush\nrlmm.config.access.key: hush\n")

    assert settings.rsm_config == {"account": "hush"}
    assert "hush" not in f"{settings!r} {settings} {settings.dump()}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("remote.log.storage.manager.impl.prefix: rsm\n", "dot at its end"),
        ("remote.log.metadata.manager.impl.prefix: ''\n", "dot at its end"),
        ("remote.log.metadata.manager.class.name: Manager\n", "package.module.Class"),
        ("remote.log.storage.manager.class.path: {a: b}\n", "neither text nor a list"),
        ("rsm.config.: {x: hush}\n", "whole name"),
        (OWN + "rsm.config.nested: {a: hush}\n", r"line 2: rsm\.config\.nested"),
    ],
)
def test_invalid_settings_of_managers_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as error:
        load(tmp_path, text)
    assert "hush" not in str(error.value)


@pytest.mark.parametrize("separator", [",", ":"])
def test_a_class_path_has_folders_and_archives(tmp_path: Path, separator: str) -> None:
    text = f"remote.log.storage.manager.class.path: 'classes{separator}/srv/own-1.0-py3-none-any.whl'\n"

    settings = load(tmp_path, text)

    assert settings.remote_log_storage_manager_class_path == (
        tmp_path / "classes",
        Path("/srv/own-1.0-py3-none-any.whl"),
    )
