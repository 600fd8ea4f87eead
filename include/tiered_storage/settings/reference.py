"""Generate docs/configuration.md from the settings, so that it cannot drift from them.

python -m tiered_storage.settings.reference                  prints the page
python -m tiered_storage.settings.reference --write FILE     writes it
python -m tiered_storage.settings.reference --check FILE     fails if FILE differs from it
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from tiered_storage.errors import ConfigurationError, TieredStorageError
from tiered_storage.settings.properties.model import Declaration, PropertyModel, Source
from tiered_storage.settings.properties.sources import TOPICS
from tiered_storage.settings.settings import Settings
from tiered_storage.settings.topics import TopicSettings

EXAMPLE = """\
log.dirs:
  - /var/lib/kafka/data-1
  - /var/lib/kafka/data-2
rsm.config.url: s3://kafka-remote-log/production
rsm.config.region: eu-central-1
log.retention.ms: 31536000000        # a year in both tiers together ...
log.local.retention.ms: 86400000     # ... of which a day is local as well
topics:
  orders:
    remote.storage.enable: true
  payments:
    remote.storage.enable: true
    retention.ms: -1
    local.retention.ms: 172800000
"""

_INTRODUCTION = f"""\
# Configuration

<!-- Made by `python -m tiered_storage.settings.reference --write docs/configuration.md`: change the settings' own
     descriptions in include/tiered_storage instead of this file. -->

All settings are in one flat YAML file. A later source wins over an earlier one:

1. the default in the tables below;
2. the file that `TIERED_STORAGE_CONFIG` names, or else `include/tiered_storage.yaml`;
3. the environment: `TIERED_STORAGE_LOG_DIRS` sets `log.dirs`. An empty variable counts as not set;
4. the parameters of a DAG run, for [some limits and sizes](airflow.md).

Unknown names are refused. **Relative paths** begin in the file's folder, or in the folder above it if that folder is
called `include`. **Credentials are not settings**: [give them](stores.md) in the environment or in an Airflow
connection. **Numbers** are in the table's unit. **Lists** are of YAML, or text with commas. **(K)** marks Kafka's own
settings.

## Example

```yaml
{EXAMPLE}```
"""

_OLDER = """\
## Older and other names

These names of Kafka, of KIP-405's drafts and of earlier releases work too. If one source sets several names of a
setting, the name on the right wins, or else the one higher in the table. A name that stands for two settings is refused
beside either of them.
"""


_UNUSED = """\
## Names of Kafka without effect

These names are accepted, and `tiered-storage doctor` lists those that are set. A name that ends in `.` stands for all
that begin with it.
"""

_WHOLE = "a whole number of "
_LIST = ": a list, or text with commas"
_BOOLEAN = "true or false"


def reference() -> str:
    """Return the whole page as Markdown."""
    sections = [_INTRODUCTION]
    declarations = [declared for name, declared in Settings.declarations().items() if name != TOPICS]
    for group, members in groupby(declarations, key=attrgetter("group")):
        sections.append(f"## {group}\n\n{_settings_table(members)}")
    topics = Settings.declarations()[TOPICS]
    sections.append(
        f"## {topics.group}\n\n`topics` is {topics.allowed}. {topics.description}\n\n"
        f"{_settings_table(TopicSettings.declarations().values())}"
    )
    older = [*_older_rows(Settings, ""), *_older_rows(TopicSettings, "a topic's ")]
    sections.append(_OLDER + "\n" + _table(("Name", "In", "Stands for"), older))
    sections.append(_UNUSED + "\n" + _table(("Why", "Names"), _unused_rows()))
    return "\n".join(sections)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print, write or check the page. Raises ConfigurationError if the checked file differs from it."""
    parser = argparse.ArgumentParser(prog="python -m tiered_storage.settings.reference", description=__doc__)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--write", type=Path, metavar="FILE", help="write the page to FILE")
    choice.add_argument("--check", type=Path, metavar="FILE", help="fail if FILE differs from the page")
    chosen = parser.parse_args(arguments)
    if chosen.write:
        chosen.write.write_text(reference(), "utf-8")
    elif chosen.check:
        _check(chosen.check)
    else:
        sys.stdout.write(reference())


def _check(file: Path) -> None:
    if not file.is_file() or file.read_text("utf-8") != reference():
        raise ConfigurationError(
            f"{file} is out of date: run python -m tiered_storage.settings.reference --write {file}"
        )


def _settings_table(declarations: Iterable[Declaration]) -> str:
    rows = (
        (
            f"`{declared.name}`",
            declared.description + (" (K)" if declared.source == Source.KAFKA else ""),
            _type(declared.allowed),
            _code(declared.default),
        )
        for declared in declarations
    )
    return _table(("Name", "Description", "Type and limits", "Default"), rows)


def _type(allowed: str) -> str:
    if allowed == _BOOLEAN:
        return "boolean"
    return re.sub(r"([\d,]+) or more", r"≥\1", allowed.removeprefix(_WHOLE).removesuffix(_LIST))


def _older_rows(model: type[PropertyModel], whose: str) -> Iterator[tuple[str, ...]]:
    for older in model.older_names:
        yield f"`{older.name}`", older.unit or "boolean", f"{whose}`{older.target}`"


def _unused_rows() -> Iterator[tuple[str, str]]:
    names = Settings.unused_names
    for reason in dict.fromkeys(names.values()):
        yield reason, ", ".join(f"`{name}`" for name in names if names[name] == reason)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _code(default: str) -> str:
    if not default or " " in default:
        return default or "not set"
    return f"`{default}`"


if __name__ == "__main__":
    try:
        main()
    except TieredStorageError as error:
        sys.exit(str(error))
