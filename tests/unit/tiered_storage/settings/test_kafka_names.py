"""No name of Kafka's tiered storage is unknown: each property has its effect, or is accepted with the reason for none,
and each metric is served by its name, or docs/monitoring.md says why not.

The list is kafka_names.csv, beside this file.
"""

from __future__ import annotations

import ast
import csv
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.command_line import mentions
from support.scraping import KAFKA, KAFKA_REMOTE
from tiered_storage.settings.properties.model import Source
from tiered_storage.settings.properties.sources import environment_variable
from tiered_storage.settings.settings import Settings, load_settings
from tiered_storage.settings.topics import TopicSettings
from unit.built_metrics import served_labels

LIST = Path(__file__).with_name("kafka_names.csv")
PROJECT = Path(__file__).parents[4]


@dataclass(frozen=True, slots=True)
class KafkaName:
    name: str
    scope: str
    type: str
    default: str
    since: str

    @property
    def example(self) -> str:
        """A name as a file has it: of a prefix, one of the names that begin with it."""
        return f"{self.name}linger.ms" if self.type == "prefix" else self.name

    @property
    def value(self) -> str:
        return self.default or "5"


def kafka_names() -> list[KafkaName]:
    lines = [line for line in LIST.read_text().splitlines() if not line.startswith("#")]
    return [KafkaName(**row) for row in csv.DictReader(lines)]


def unserved() -> dict[str, str]:
    """Return the reason that docs/monitoring.md gives for each metric of Kafka's that is not served."""
    page = (PROJECT / "docs" / "monitoring.md").read_text("utf-8")
    table = page.partition("\n### Kafka's metrics that are not served\n")[2].partition("\n### ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE))


METRICS = {each.name for each in kafka_names() if each.scope == "metric"}
NAMES = [each for each in kafka_names() if each.scope != "metric"]
UNUSED = [each for each in NAMES if Settings.why_unused(each.example)]
HONOURED = [each for each in NAMES if each not in UNUSED]


def test_the_list_has_every_name_once() -> None:
    assert len({each.name for each in NAMES}) == len(NAMES)
    assert {each.name for each in UNUSED} == set(Settings.unused_names)


@pytest.mark.parametrize("kafka", HONOURED, ids=lambda each: each.name)
def test_a_name_that_has_an_effect_is_documented_as_one_of_kafka_with_its_default(kafka: KafkaName) -> None:
    declaration = (TopicSettings if kafka.scope == "topic" else Settings).declarations()[kafka.name]

    assert declaration.source == Source.KAFKA
    has_its_default = declaration.default in {kafka.default, f"log.{kafka.name}"}
    assert has_its_default or f"Kafka's default: {kafka.default or 'none'}" in declaration.description


def test_a_name_that_has_an_effect_is_read_by_the_product() -> None:
    read = {
        node.attr
        for root in ("include", "plugins")
        for path in (PROJECT / root).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute)
    }
    fields = {str(field.alias): name for kind in (Settings, TopicSettings) for name, field in kind.model_fields.items()}
    # Settings resolves the defaults of all topics into each topic's own.
    read |= {f"log_{name}" for name in TopicSettings.model_fields if name in read}

    assert [each.name for each in HONOURED if fields[each.name] not in read] == []


@pytest.mark.parametrize("kafka", UNUSED, ids=lambda each: each.name)
def test_a_name_without_effect_is_accepted_and_named_with_the_reason(kafka: KafkaName, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"{kafka.example}: {kafka.value}\n")

    settings = load_settings(file, environ={})

    [notice] = settings.notices
    assert mentions(notice, f"{file}, line 1: {kafka.example}", Settings.why_unused(kafka.example))
    assert settings.dump() == load_settings(_empty(tmp_path), environ={}).dump()


@pytest.mark.parametrize("kafka", [each for each in UNUSED if each.type != "prefix"], ids=lambda each: each.name)
def test_a_variable_without_effect_is_accepted_too(kafka: KafkaName, tmp_path: Path) -> None:
    settings = load_settings(_empty(tmp_path), environ={environment_variable(kafka.name): kafka.value})

    assert len(settings.notices) == 1


def test_kafkas_own_defaults_are_accepted_all_together(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    broker = [f"{each.name}: {each.default}" for each in HONOURED if each.scope == "broker" and each.default]
    topic = [f"    {each.name}: {each.default}" for each in HONOURED if each.scope == "topic"]
    file.write_text("\n".join([*broker, "topics:", "  orders:", *topic]) + "\n")

    assert load_settings(file, environ={}).notices == ()


def test_a_name_that_only_looks_like_one_without_effect_is_refused(tmp_path: Path) -> None:
    for name in ("remote.log.manager.task.interval", "rlmm.config.remote.log.metadata.producerlinger.ms"):
        assert Settings.why_unused(name) is None


def test_each_metric_is_served_by_its_name_or_has_the_reason_why_not() -> None:
    names = [name for name in served_labels() if name.startswith("kafka_")]
    served = {name.removeprefix(KAFKA).removeprefix(KAFKA_REMOTE).removesuffix("_total") for name in names}

    assert unserved().keys() < METRICS
    assert served == {name.removesuffix("PerSec").lower() for name in METRICS - unserved().keys()}


def test_what_is_nearest_to_a_metric_is_served() -> None:
    from tiered_storage_airflow.read_service.access import Metrics

    served = Metrics().text().decode()
    for reason in unserved().values():
        nearest = re.match(r"nearest: `(\w+)` of the read service", reason)
        assert f"# TYPE {nearest[1]} " in served if nearest else re.match(r"absent: .", reason)


def _empty(folder: Path) -> Path:
    file = folder / "empty.yaml"
    file.write_text("")
    return file
