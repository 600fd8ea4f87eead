"""Make a model of the given properties: resolve older names and precedence, and report every problem at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tiered_storage.errors import ConfigurationError
from tiered_storage.redaction import hide_secrets
from tiered_storage.settings.properties.model import CONTRADICTION, OlderName, PropertyModel

_LONGEST_VALUE = 120
_WORDS = re.compile(r"[A-Za-z]{1,20}([._-][A-Za-z]{1,20}){0,9}")
_CREDENTIAL = re.compile(r"secret|password|token|credential|access[._]key", re.IGNORECASE)

Model = TypeVar("Model", bound=PropertyModel)
Models = Mapping[tuple[str, ...], type[PropertyModel]]
"""The model for the properties under each path prefix: `()`, and `("topics",)` for those of every topic."""


@dataclass(frozen=True, slots=True)
class Property:
    """One given value.

    `path` is `("log.dirs",)` or `("topics", "orders", "retention.ms")`; `where` is a file and line, a variable or a
    parameter. A value given under an older name keeps that name and value, for messages.
    """

    path: tuple[str, ...]
    value: object
    where: str
    older: OlderName | None = None
    given_value: object = None

    @property
    def given_name(self) -> str:
        """The name under which the value was given."""
        return self.older.name if self.older else self.path[-1]

    def renamed(self, older: OlderName) -> Property:
        """Return the property under the name that `older` stands for."""
        path = (*self.path[:-1], older.target)
        return replace(self, path=path, value=older.converted(self.value), older=older, given_value=self.value)


@dataclass(frozen=True, slots=True)
class Properties:
    """What one source gave, its `problems`, and `notices` for the user."""

    properties: Sequence[Property] = ()
    problems: Sequence[str] = ()
    notices: Sequence[str] = ()


def read_properties(
    model: type[Model],
    sources: Iterable[Properties],
    *,
    place: str,
    base: Path | None = None,
    models: Models | None = None,
) -> Model:
    """Return the model of all `sources`; a later one overrides an earlier one.

    `place` appears in problems that involve a default; relative paths begin in `base`. Raises ConfigurationError with
    every problem.
    """
    models = {(): model, **(models or {})}
    gathered = [_under_present_names(source, models) for source in sources]
    chosen = {given.path: given for source in gathered for given in source.properties}
    problems = [problem for source in gathered for problem in source.problems]
    values: Model | None = None
    try:
        values = model.model_validate(_tree(chosen.values()), context={"base": base} if base else None)
    except ValidationError as error:
        explainer = _Explainer(chosen, models, place)
        problems.extend(
            sentence for detail in error.errors(include_url=False) for sentence in explainer.problems_of(detail)
        )
    # Raised outside of the except clause: the cause would show the given values, and so a password.
    if problems or values is None:
        raise ConfigurationError(_together(problems))
    notices = [notice for source in gathered for notice in source.notices]
    return values.noted(notices).from_places({path: given.where for path, given in chosen.items()})


def unknown_name(name: str, noun: str, likely: str | None) -> str:
    """Return why `name` is refused; suggest the `likely` right one if there is one."""
    shown = showable(name)
    if _CREDENTIAL.search(name):
        return f"{shown} is not a {noun}: give credentials as AWS_* in the environment or in an Airflow connection"
    return f"{shown} is not a {noun}; " + (f"did you mean {likely}?" if likely else "docs/configuration.md lists all")


def showable(name: str) -> str:
    """Return `name` if it consists of words, as a setting's does; else a placeholder, since it may be a secret."""
    return name if _WORDS.fullmatch(name) else "a name that is not shown, as it may be a secret,"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name of `known` that is most similar to `name`, dots and underscores alike; None if none is.

    A name that differs only by a prefix comes first: retention.ms is log.retention.ms for a single topic.
    """
    plain = {candidate.lower().replace("_", "."): candidate for candidate in known}
    asked = name.lower().replace("_", ".")
    kin = [candidate for candidate in plain if f".{asked}".endswith(f".{candidate}") or candidate.endswith(f".{asked}")]
    found = difflib.get_close_matches(asked, kin or plain, n=1, cutoff=0 if kin else 0.6)
    return plain[found[0]] if found else None


def _under_present_names(source: Properties, models: Models) -> Properties:
    """Replace older names by current ones; if one source sets both, the newer wins, with a notice."""
    properties: list[Property] = []
    problems, notices = list(source.problems), list(source.notices)
    for scope, members in groupby(sorted(source.properties, key=_scope), key=_scope):
        present = {member.path[-1]: member for member in members}
        model = models.get(scope[:1]) if len(scope) != 1 else None  # one level down are topics, not properties
        reasons = {name: model.why_unused(name) for name in present} if model else {}
        for name, reason in reasons.items():
            if reason is not None:
                unused = present.pop(name)
                notices.append(f"{unused.where}: {_shown_name(unused.path)} has no effect here: {reason}")
        older_names = model.older_names if model else ()
        outdated = {name: present.pop(name) for name in {older.name for older in older_names} & present.keys()}
        for older in older_names:
            member = outdated.get(older.name)
            winner = present.get(older.target)
            if member and winner and older.stands_alone:
                problems.append(
                    f"{member.where}: {_shown_name(member.path)} stands for {older.target} too, which is set as well "
                    f"({winner.where}): set the newer names only"
                )
            elif member and winner:
                notices.append(
                    f"{member.where}: {_shown_name(member.path)} is not used: "
                    f"{winner.given_name} is set too ({winner.where}) and wins"
                )
            elif member:
                present[older.target] = member.renamed(older)
        properties.extend(present.values())
    return Properties(properties, problems, notices)


def _scope(given: Property) -> tuple[str, ...]:
    return given.path[:-1]


def _tree(properties: Iterable[Property]) -> dict[str, Any]:
    """Return properties as nested mappings; a value in place of a mapping stays, and validation refuses it."""
    tree: dict[str, Any] = {}
    for given in properties:
        level: Any = tree
        for name in given.path[:-1]:
            level = level.setdefault(name, {}) if isinstance(level, dict) else None
        if isinstance(level, dict):
            level[given.path[-1]] = level.get(given.path[-1], {}) if given.value == {} else given.value
    return tree


@dataclass(frozen=True, slots=True)
class _Explainer:
    """Turns pydantic's errors into our messages: place, name, value, and what is allowed."""

    chosen: Mapping[tuple[str, ...], Property]
    models: Models
    place: str

    def problems_of(self, detail: ErrorDetails) -> list[str]:
        """Return the messages for one error; none if it only follows from another error."""
        location = tuple(str(part) for part in detail["loc"])
        if detail["type"] == "default_factory_not_called":
            return []
        if detail["type"] == CONTRADICTION:
            scope = f"{_shown_name(location)}: " if len(location) > 1 else ""
            found = detail["ctx"]["found"]
            return [f"{self._where(location, *each.paths)}: {scope}{each.sentence}" for each in found]
        if detail["type"] == "extra_forbidden":
            model = self._model(location)
            name = unknown_name(location[-1], model.noun, nearest(location[-1], model.known_names()))
            return [f"{self._where(location)}: {_shown_name((*location[:-1], name))}"]
        if not location:
            odd = next(
                (given.where for path, given in self.chosen.items() if not "".join(path).isprintable()), self.place
            )
            return [f"{odd}: a name is not valid Unicode text"]
        if location[-1] == "[key]":
            return [f"{self._where(location[:-1])}: {location[-2]!r}: {_reason(detail)}"]
        return [f"{self._where(location)}: {self._refused(location, detail)}"]

    def _refused(self, location: tuple[str, ...], detail: ErrorDetails) -> str:
        given = self._given(location)
        path = given.path if given else location[:1]
        declaration = self._model(path).declarations().get(path[-1])
        allowed = declaration.allowed if declaration else "a mapping of properties to values"
        name, value = path, detail["input"]
        if given and given.older:
            name, value = (*path[:-1], given.older.name), given.given_value
            unit = f" in {given.older.unit}" if given.older.unit else ""
            allowed = f"a value{unit} for {given.older.target}, which takes {allowed}"
        reason = f": {_reason(detail)}" if detail["type"] == "value_error" else ""
        return f"{_shown_name(name)} is {_shown_value(value)}{reason}; allowed: {allowed}"

    def _model(self, path: tuple[str, ...]) -> type[PropertyModel]:
        return self.models[path[:1] if len(path) > 2 else ()]

    def _given(self, location: tuple[str, ...]) -> Property | None:
        ends = range(len(location), 0, -1)
        return next((self.chosen[location[:end]] for end in ends if location[:end] in self.chosen), None)

    def _where(self, location: tuple[str, ...], *paths: tuple[str, ...]) -> str:
        beneath = (given for path, given in self.chosen.items() if path[: len(location)] == location)
        given = next((self.chosen[path] for path in paths if path in self.chosen), None)
        given = given or self._given(location) or next(beneath, None)
        return given.where if given else self.place


def _reason(detail: ErrorDetails) -> str:
    return str(detail.get("ctx", {}).get("error", detail["msg"]))


def _shown_name(path: tuple[str, ...]) -> str:
    return path[-1] if len(path) == 1 else ": ".join((f"topic {path[1]}", *path[2:]))


def _shown_value(value: object) -> str:
    text = hide_secrets(repr(value))
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def _together(problems: Sequence[str]) -> str:
    return problems[0] if len(problems) == 1 else "\n  ".join([f"{len(problems)} settings are invalid:", *problems])
