"""Which partitions a person means: a regular expression over topic names, and numbers of partitions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tiered_storage.errors import ConfigurationError

MOST_PARTITIONS = 100_000
"""More numbers than this are taken for a slip of the pen."""

_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<begin>\()(?:\?[^:!=<)]*[:!=<]?)?|\)(?P<end>[*+{]?)|(?P<choice>[*+?{|])",
    re.DOTALL,
)
"""What matters of a regular expression for _may_take_for_ever; what is escaped or in brackets does not."""
_PART = re.compile(r"(?P<first>\d{1,10})(?:-(?P<last>\d{1,10}))?", re.ASCII)


def _may_take_for_ever(expression: str) -> bool:
    """Whether a group is repeated that has repeats or alternatives in it: there are too many ways to read a name."""
    groups = [False]
    for token in _TOKEN.finditer(expression):
        if token["begin"]:
            groups.append(False)
        elif token["end"] is not None:
            has_choices = groups.pop() if len(groups) > 1 else groups[0]
            if token["end"] and has_choices:
                return True
            groups[-1] |= has_choices or bool(token["end"])
        elif token["choice"]:
            groups[-1] = True
    return False


@dataclass(frozen=True, slots=True)
class Selection:
    """`topics` is a regular expression over whole topic names; `partitions` are numbers, None for all.

    Raises ConfigurationError for an expression that is none.
    """

    topics: str = ".*"
    partitions: frozenset[int] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant before anything is looked at."""
        try:
            re.compile(self.topics)
        # The last two: a repeat that no machine counts to, and too many groups in one another.
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigurationError(f"topics: {self.topics!r} is not a regular expression: {error}") from error
        if _may_take_for_ever(self.topics):
            raise ConfigurationError(
                f"topics: {self.topics!r} repeats a group that has repeats or alternatives in it: with some names that "
                "takes for ever; write it without, as orders-.* or (eu|us)-orders"
            )

    @property
    def is_narrowed(self) -> bool:
        """Whether a person chose anything less than everything."""
        return self.topics != ".*" or self.partitions is not None

    def matches(self, topic: str, partition: int | None = None) -> bool:
        """Whether that partition is meant; without its number, whether any of the topic's may be."""
        if partition is not None and self.partitions is not None and partition not in self.partitions:
            return False
        return re.fullmatch(self.topics, topic) is not None


EVERYTHING = Selection()


def parse_partitions(text: str | None) -> frozenset[int] | None:
    """Return the numbers in a text such as 0,2-4 (ends inclusive); None, for all, where none was given.

    Raises ConfigurationError where it cannot be read, is blank, or names more than MOST_PARTITIONS.
    """
    if text is None:
        return None
    if not text.strip():
        raise ConfigurationError("partitions: nothing is named: write numbers as 0,2-4, or leave it out to mean all")
    numbers: set[int] = set()
    for part in text.split(","):
        numbers.update(_range(part.strip(), text))
        if len(numbers) > MOST_PARTITIONS:
            raise _too_many(text)
    return frozenset(numbers)


def _range(part: str, text: str) -> range:
    found = _PART.fullmatch(part)
    if found is None:
        raise ConfigurationError(f"partitions: {part!r} in {text!r} is no number and no range: write them as 0,2-4")
    first = int(found["first"])
    last = first if found["last"] is None else int(found["last"])
    if last < first:
        raise ConfigurationError(
            f"partitions: {part!r} in {text!r} ends before it begins: write the lower number first"
        )
    if last - first >= MOST_PARTITIONS:
        raise _too_many(text)
    return range(first, last + 1)


def _too_many(text: str) -> ConfigurationError:
    return ConfigurationError(f"partitions: {text!r} names more than {MOST_PARTITIONS:,}: leave it out to mean all")
