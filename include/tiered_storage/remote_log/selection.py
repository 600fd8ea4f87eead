"""What a run takes: the topics, partitions and numbers that people enter, and each partition's share of its room."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from random import Random
from typing import TypeVar

import re2

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.files.topic_partition import described_near, near_names

MOST_PARTITIONS = 100_000
"""More numbers than this are refused: they are most likely a mistake."""
MOST_MEMORY = 1 << 20
"""The limit on a compiled regular expression, in bytes; it also bounds the time of a match."""
MOST_SHOWN = 100
"""How many characters of the input an error repeats."""
LARGEST_NUMBER = 2**63 - 1
"""The largest offset, and the largest time in ms, that Kafka has."""

_ESCAPED = re.compile(r"\\(.)")
_DIGITS = re.compile(r"-?[0-9]{1,19}")
_PART = re.compile(r"(?P<first>\d{1,10})(?:-(?P<last>\d{1,10}))?", re.ASCII)


def _compiled(expression: str) -> re2._Regexp:
    """Return a regular expression in RE2's syntax, compiled: the time of a match is linear in the text's length.

    Raises ConfigurationError if it is not valid, or needs more than MOST_MEMORY.
    """
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MOST_MEMORY
    try:
        return re2.compile(expression, options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0]
        why = reason.decode(errors="replace") if isinstance(reason, bytes) else "it is not Unicode text"
        raise ConfigurationError(
            f"topics: {in_short(expression)} is not a regular expression: {_shortened(why)}; the syntax is "
            "RE2's, which has no look-around and no back-references: write orders|payments, or orders-.*"
        ) from error


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


@dataclass(frozen=True, slots=True)
class Selection:
    """`topics` is a regular expression (RE2) over whole topic names; `partitions` are numbers, None for all.

    Raises ConfigurationError if `topics` is not a valid one.
    """

    topics: str = ".*"
    partitions: frozenset[int] | None = None
    _pattern: re2._Regexp = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse invalid values early."""
        object.__setattr__(self, "_pattern", _compiled(self.topics))

    @property
    def is_narrowed(self) -> bool:
        """Whether the user selected anything less than everything."""
        return self.topics != ".*" or self.partitions is not None

    def matches(self, topic: str, partition: int | None = None) -> bool:
        """Return whether the partition is selected; without its number, whether any of the topic's may be."""
        if partition is not None and self.partitions is not None and partition not in self.partitions:
            return False
        return self._pattern.fullmatch(topic) is not None

    def near_names(self, known: Collection[str]) -> dict[str, list[str]]:
        """Return the names in `topics` that are not `known`, with the known ones that are nearly the same.

        Names are in `topics` alone, or between bars.
        """
        named = (_ESCAPED.sub(r"\1", part) for part in self.topics.split("|"))
        found = {name: near_names(name, known) for name in named if name not in known}
        return {name: near for name, near in found.items() if near}

    def near_hint(self, known: Collection[str]) -> str | None:
        """Return what to do about the names in `topics` that are nearly those of `known`; None if none is."""
        near = sorted({*chain.from_iterable(self.near_names(known).values())})
        return f"{described_near(near)}: give the topic's exact name" if near else None


EVERYTHING = Selection()


def in_turns(wanted: Sequence[int], room: int | None, seed: int | None = None) -> list[int]:
    """Return how many of what is `wanted` each partition gets if all take one in turn until `room` is used up.

    So no partition waits for another, which may fail in every run. If there are more partitions than room, the first
    ones get one each; with a `seed`, chance decides which, since failures are not remembered. A `room` of None is
    enough for all.
    """
    if room is None or sum(wanted) <= room:
        return list(wanted)
    level, waiting = 0, len(wanted)
    for least in sorted(wanted):
        if (least - level) * waiting > room:
            break
        room -= (least - level) * waiting
        level, waiting = least, waiting - 1
    turns, last_turn = divmod(room, waiting)
    shares = [min(each, level + turns) for each in wanted]
    more = [at for at, each in enumerate(wanted) if each > level + turns]
    is_scarce = level + turns == 0
    first = Random(seed).randrange(len(more)) if is_scarce and seed is not None else 0  # noqa: S311 - nothing secret
    for at in (more[first:] + more[:first])[:last_turn]:
        shares[at] += 1
    return shares


Partition = TypeVar("Partition")
Plan = TypeVar("Plan")


def plan_in_turns(
    partitions: Iterable[Partition],
    plan_of: Callable[[Partition, int | None], Plan | None],
    count: Callable[[Plan], int],
    room: int | None,
    seed: int | None = None,
) -> Iterator[tuple[Plan, int]]:
    """Yield the plan of each partition, within its share of `room` segments (see in_turns), and how many are due of it.

    `plan_of` plans a partition for so many segments at most, None: for all; it returns None for one that must be left
    alone. `count` returns how many a plan has. What a partition cannot use of its share is for the next that was cut.
    The number due is exact up to `room`; more than that counts as one more than `room`.
    """
    planned, held = list[tuple[Partition, int, Plan | None]](), 0
    for each in partitions:
        plan = plan_of(each, None if room is None else room + 1)
        if plan is None:
            continue
        due = count(plan)
        # All plans of a backlog together would need unbounded memory: those beyond the room are made again.
        is_kept = room is None or held + due <= room
        held += due if is_kept else 0
        planned.append((each, due, plan if is_kept else None))
    unused = 0
    for (each, due, plan), share in zip(planned, in_turns([due for _, due, _ in planned], room, seed), strict=True):
        most = min(due, share + unused)
        within = plan_of(each, most) if plan is None or most < due else plan
        unused += share - (0 if within is None else count(within))
        if within is not None:
            yield within, due


def parse_partitions(text: str | None) -> frozenset[int] | None:
    """Return the numbers in a text such as 0,2-4 (ends inclusive); None, for all, if none was given.

    Raises ConfigurationError if it cannot be read, is blank, or names more than MOST_PARTITIONS.
    """
    if text is None:
        return None
    if not text.strip():
        raise ConfigurationError(
            "partitions: nothing is named: write numbers such as 0,2-4, or leave partitions out for all"
        )
    numbers: set[int] = set()
    for part in text.split(","):
        numbers.update(_range(part.strip(), text))
        if len(numbers) > MOST_PARTITIONS:
            raise _too_many(text)
    return frozenset(numbers)


def parse_number(name: str, text: str, least: int = 0) -> int:
    """Return the whole number in `text`. Raises ConfigurationError, naming `name`, if it is not one, or is below
    `least`."""
    number = int(text) if _DIGITS.fullmatch(text) else None
    if number is None or not least <= number <= LARGEST_NUMBER:
        raise ConfigurationError(
            f"{name} is {in_short(text)}: it must be a whole number from {least} to {LARGEST_NUMBER}"
        )
    return number


def in_short(text: str) -> str:
    """Return the input in quotes, shortened for a message if it is long."""
    return _shortened(repr(text))


def _range(part: str, text: str) -> range:
    found = _PART.fullmatch(part)
    if found is None:
        raise ConfigurationError(
            f"partitions: {in_short(part)} in {in_short(text)} is not a number or a range: write 0,2-4"
        )
    first = int(found["first"])
    last = first if found["last"] is None else int(found["last"])
    if last < first:
        raise ConfigurationError(
            f"partitions: {part!r} in {in_short(text)} ends before it begins: write the lower number first"
        )
    if last - first >= MOST_PARTITIONS:
        raise _too_many(text)
    return range(first, last + 1)


def _too_many(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"partitions: {in_short(text)} names more than {MOST_PARTITIONS:,}: name fewer, or leave partitions out for all"
    )
