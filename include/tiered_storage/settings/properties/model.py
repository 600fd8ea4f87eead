"""Models whose fields are Kafka properties: one declaration gives a property's name, type, limits and documentation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import accumulate
from types import MappingProxyType
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PrivateAttr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

LARGEST_INTEGER = 2**63 - 1
CONTRADICTION = "contradiction"


class Source(StrEnum):
    """Who gave a property its name and meaning."""

    KAFKA = "Kafka"
    KIP_405_DRAFT = "KIP-405 draft"
    OURS = "ours"


@dataclass(frozen=True, slots=True)
class OlderName:
    """Another name of `target`, whose value counts `factor` of the target's units.

    If one source sets several names of a target, the target's own wins, or else the first in the model's list. A name
    may stand for several targets, with an entry for each: it then `stands_alone`, and a source that also sets one of
    the targets is refused, because it would be unclear which value is meant.
    """

    name: str
    target: str
    unit: str = ""
    factor: int = 1
    source: Source = Source.KAFKA
    stands_alone: bool = False

    def converted(self, value: object) -> object:
        """Return `value` in the target's unit. A negative value keeps its meaning; anything but a number stays."""
        # Python converts no number with more digits; the target's type refuses text that is left.
        if self.factor == 1 or not re.fullmatch(r"\s*[+-]?\d{1,4300}\s*", str(value)):
            return value
        number = int(str(value))
        return number if number < 0 else number * self.factor


@dataclass(frozen=True, slots=True)
class Declaration:
    """What the documentation and messages show of a property, from its field."""

    name: str
    description: str
    group: str
    source: str
    allowed: str
    default: str


def setting(
    name: str,
    default: object,
    group: str,
    source: Source,
    *,
    allowed: str = "true or false",
    unit: str = "",
    at_least: int | None = None,
    at_most: int = LARGEST_INTEGER,
    special: Mapping[int, str] = MappingProxyType({}),
    pattern: str | None = None,
    default_text: str = "",
    is_secret: bool = False,
) -> Any:
    """Declare the property `name` as a field; a callable `default` makes it from the fields before it.

    A whole number has a `unit` and inclusive limits; `special` are values below `at_least` with a meaning of their own.
    `default_text` describes a default that has no fixed value. A repr does not show the value if it `is_secret`.
    """
    field: dict[str, Any] = {"default_factory": default} if callable(default) else {"default": default}
    if at_least is not None:
        allowed = _allowed_numbers(unit, at_least, at_most, special)
        field |= {"ge": min(at_least, *special, at_least), "le": at_most}
    extra_schema: dict[str, JsonValue] = {
        "group": group,
        "source": source.value,
        "allowed": allowed,
        "default": default_text,
    }
    return Field(alias=name, pattern=pattern, json_schema_extra=extra_schema, repr=not is_secret, **field)


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Why valid properties contradict each other; reported at the place of the first of `paths` that was given."""

    sentence: str
    paths: tuple[tuple[str, ...], ...] = ()


def contradiction(*found: Contradiction) -> PydanticCustomError:
    """Return the error with which a validator reports the contradictions it found."""
    sentences = "; ".join(each.sentence for each in found)
    return PydanticCustomError(CONTRADICTION, "{sentences}", {"sentences": sentences, "found": found})


class PropertyModel(BaseModel):
    """Frozen, typed properties by their Kafka names; an unknown name is refused. Fields' docstrings describe them."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
        defer_build=True,  # a group of settings is never validated by itself
    )

    older_names: ClassVar[tuple[OlderName, ...]] = ()
    unused_names: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Names of Kafka that are accepted and have no effect here, with the reason; one that ends in a dot is a prefix."""
    noun: ClassVar[str] = "setting"

    _notices: tuple[str, ...] = PrivateAttr(default=())
    _origins: Mapping[tuple[str, ...], str] = PrivateAttr(default_factory=dict)

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices about where the values came from, such as two generations of one property."""
        return self._notices

    @property
    def origins(self) -> Mapping[tuple[str, ...], str]:
        """Where each value that is not a default was set, by its path: a file and line, a variable, or a parameter."""
        return self._origins

    def from_places(self, origins: Mapping[tuple[str, ...], str]) -> Self:
        """Return the same values with `origins`; they take no part in the values' meaning."""
        copy = self.model_copy()
        copy._origins = origins
        return copy

    def noted(self, notices: Sequence[str]) -> Self:
        """Return the same values with `notices` added; they take no part in the values' meaning."""
        copy = self.model_copy()
        copy._notices = (*self._notices, *notices)
        return copy

    @classmethod
    @cache
    def declarations(cls) -> Mapping[str, Declaration]:
        """Return the declaration of every property, by name and in the order of the fields."""
        return {str(field.alias): _declaration(field) for field in cls.model_fields.values()}

    @classmethod
    def known_names(cls) -> list[str]:
        """Return every accepted name, current names first; without those that are only the start of names."""
        names = dict.fromkeys([*cls.declarations(), *(older.name for older in cls.older_names)])
        return [name for name in names if not name.endswith(".")]

    @classmethod
    def why_unused(cls, name: str) -> str | None:
        """Return why `name` has no effect here; None if it has one, or is unknown."""
        prefixes = (f"{start}." for start in accumulate(name.split("."), "{}.{}".format))
        return next((cls.unused_names[each] for each in (name, *prefixes) if each in cls.unused_names), None)


def _declaration(field: FieldInfo) -> Declaration:
    extra = field.json_schema_extra
    extra_schema: Mapping[str, Any] = extra if isinstance(extra, dict) else {}
    return Declaration(
        name=str(field.alias),
        description=" ".join((field.description or "").split()),
        group=str(extra_schema["group"]),
        source=str(extra_schema["source"]),
        allowed=str(extra_schema["allowed"]),
        default=str(extra_schema["default"]) or _as_text(field.default),
    )


def _allowed_numbers(unit: str, at_least: int, at_most: int, special: Mapping[int, str]) -> str:
    upper = " or more" if at_most == LARGEST_INTEGER else f" to {at_most:,}"
    others = "".join(f", or {value} ({meaning})" for value, meaning in special.items())
    return f"a whole number of {unit}, {at_least:,}{upper}{others}"


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None or value in ((), {}) else str(value)
