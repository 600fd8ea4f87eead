"""Where settings come from: the YAML file, the environment, and a DAG run's parameters.

Every YAML scalar is taken as its text, so that 10:30 is not read as 630, nor no as false; the setting's type decides
what it means, as for an environment variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import yaml

from tiered_storage.errors import ConfigurationError
from tiered_storage.regular_files import open_regular
from tiered_storage.settings.properties.cluster_files import CONFIG_VARIABLE
from tiered_storage.settings.properties.reading import Properties, Property, nearest, showable, unknown_name

ENVIRONMENT_PREFIX = "TIERED_STORAGE_"
TOPICS = "topics"
_QUOTED = re.compile(r"(['\"])(?!<)[^'\"]{2,}\1")
"""What a parser quotes from a file, except punctuation and the names of YAML's own tokens."""


def read_file(path: Path) -> Properties:
    """Return what the YAML file `path` sets, duplicate names as problems.

    Raises ConfigurationError if it cannot be read, is not YAML (with the line), or is not a mapping.
    """
    try:
        with open_regular(path) as file:
            text = file.read().decode("utf-8")
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"{path}: cannot read the settings: {reason}") from error
    except yaml.YAMLError as error:
        raise not_yaml(path, error) from None
    if root is None:
        return Properties()
    if not isinstance(root, yaml.MappingNode):
        raise ConfigurationError(f"{path}, line 1: a settings file must hold lines of 'name: value'")
    return _FileReader(path).read(root)


def not_yaml(path: Path, error: Exception) -> ConfigurationError:
    """Return the error for a file that is not YAML: its line, and nothing of its content.

    Raise it `from None`: the parser's error quotes the file, which may hold secrets if it was named by mistake.
    """
    mark = getattr(error, "problem_mark", None)
    line = "" if mark is None else f", line {mark.line + 1}"
    problem = _QUOTED.sub("…", getattr(error, "problem", None) or "it contains something that YAML does not allow")
    return ConfigurationError(f"{path}{line}: this is not YAML: {problem}")


def read_environment(environ: Mapping[str, str], names: Iterable[str]) -> Properties:
    """Return what TIERED_STORAGE_* variables set, unknown ones as problems; an empty variable counts as not set."""
    by_variable = {environment_variable(name): name for name in names if name != TOPICS}
    properties, problems = [], []
    for variable in sorted(name for name in environ if name.startswith(ENVIRONMENT_PREFIX)):
        if variable == CONFIG_VARIABLE:
            continue
        if variable not in by_variable:
            problems.append(f"environment: {_unknown_variable(variable, by_variable.values())}")
        elif environ[variable]:
            where = f"environment variable {variable}"
            properties.append(Property((by_variable[variable],), environ[variable], where))
    return Properties(properties, problems)


def read_overrides(overrides: Mapping[str, object]) -> Properties:
    """Return what a DAG run's parameters set; None counts as not set."""
    return Properties([given for given in _flat(overrides, "the run's parameters") if given.value is not None])


def environment_variable(name: str) -> str:
    """Return the variable that sets the property `name`."""
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")


def _unknown_variable(variable: str, names: Iterable[str]) -> str:
    if variable == environment_variable(TOPICS):
        return f"{variable}: set the properties of topics in the file or by a run's parameters"
    likely = nearest(variable.removeprefix(ENVIRONMENT_PREFIX), names)
    return unknown_name(variable, "variable of a setting", environment_variable(likely) if likely else None)


class _FileReader:
    """Turns the nodes of one file into properties with their line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._problems: list[str] = []

    def read(self, root: yaml.MappingNode) -> Properties:
        properties = list(self._properties(root))
        return Properties(properties, self._problems)

    def _properties(self, root: yaml.MappingNode) -> Iterator[Property]:
        for name, line, node in self._members(root, ""):
            if name != TOPICS or not isinstance(node, yaml.MappingNode):
                yield self._property((name,), node, line)
                continue
            for topic, topic_line, settings in self._members(node, ""):
                if not isinstance(settings, yaml.MappingNode):
                    yield self._property((TOPICS, topic), settings, topic_line)
                    continue
                yield Property((TOPICS, topic), {}, self._where(topic_line))
                for key, key_line, value in self._members(settings, f"topic {topic}: "):
                    yield self._property((TOPICS, topic, key), value, key_line)

    def _members(self, node: yaml.MappingNode, scope: str) -> Iterator[tuple[str, int, yaml.Node]]:
        first_lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self._problems.append(f"{self._where(line)}: {scope}a name must be plain text, not a list or a mapping")
            elif key.value in first_lines:
                first = first_lines[key.value]
                self._problems.append(
                    f"{self._where(line)}: {scope}{showable(key.value)} is set twice; first in line {first}"
                )
            else:
                first_lines[key.value] = line
                yield key.value, line, value

    def _property(self, path: tuple[str, ...], node: yaml.Node, line: int) -> Property:
        if path[0] == TOPICS and len(path) < 3 and isinstance(node, yaml.ScalarNode) and not node.value:
            return Property(path, {}, self._where(line))
        return Property(path, _plain(node), self._where(line))

    def _where(self, line: int) -> str:
        return f"{self._path}, line {line}"


def _plain(node: yaml.Node, levels: int = 3) -> object:
    """Return text, and lists and mappings of it; stop below `levels`, which no setting needs (aliases may loop)."""
    if isinstance(node, yaml.ScalarNode):
        return node.value
    if not levels:
        return "…"
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, levels - 1) for item in node.value]
    return {str(_plain(key, levels - 1)): _plain(value, levels - 1) for key, value in node.value}


def _flat(overrides: Mapping[str, object], where: str) -> Iterator[Property]:
    for name, value in overrides.items():
        if name != TOPICS or not isinstance(value, Mapping):
            yield Property((name,), value, where)
            continue
        for topic, settings in value.items():
            if not isinstance(settings, Mapping):
                yield Property((name, str(topic)), settings, where)
                continue
            yield Property((name, str(topic)), {}, where)
            yield from (Property((name, str(topic), str(key)), given, where) for key, given in settings.items())
