from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.command_line import mentions
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.selection import (
    EVERYTHING,
    MOST_PARTITIONS,
    Selection,
    in_turns,
    parse_partitions,
    plan_in_turns,
)


def test_a_selection_is_about_whole_names() -> None:
    assert Selection("orders|clicks").matches("clicks")
    assert not Selection("orders").matches("orders-eu")
    assert EVERYTHING.matches("anything")
    assert EVERYTHING.matches("anything", 7)


def test_a_selection_may_name_partitions() -> None:
    chosen = Selection("orders", frozenset({0, 2}))
    assert [number for number in range(4) if chosen.matches("orders", number)] == [0, 2]
    assert not chosen.matches("clicks", 0)
    assert chosen.matches("orders"), "a partition whose number is unknown may be one of them"
    assert not Selection("orders", frozenset()).matches("orders", 0)


def test_a_selection_knows_which_of_its_names_are_nearly_others() -> None:
    known = {"orders", "Clicks.eu", "clicks.eu"}
    chosen = Selection(r"orders|clicks\_eu|payments")
    assert chosen.near_names(known) == {"clicks_eu": ["Clicks.eu", "clicks.eu"]}
    assert mentions(chosen.near_hint(known), "Clicks.eu, clicks.eu differ")
    assert (Selection("clicks.eu").near_hint(known), EVERYTHING.near_hint(known)) == (None, None)


def test_an_expression_that_is_invalid_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"topics: 'orders\('"):
        Selection("orders(")


@pytest.mark.parametrize(
    "pattern",
    ["a{1001}", "(.{1000})" * 9, "a\ud800", "(?!__).*", r"(a)\1", "x" * 5000 + "("],
    ids=["repeats", "memory", "no text", "look-around", "back-reference", "long"],
)
def test_an_expression_that_re2_has_not_is_refused_in_few_words(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="RE2") as refused:
        Selection(pattern)
    assert len(str(refused.value)) < 500


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "expression",
    [
        ".*.*.*.*.*.*.*!", "(a+)+b", "(a|a)*b", "((a+)b?)+", "(?:x|y){3}", "(a{2,})*", r"([a-z]+\.)*orders", "(a*)*",
        "(?P<n>a+)+", "((a)+)+", "a{99999999999}", ".*(" * 5000 + ")" * 5000, "(a?){50}a{50}", ".*a.*b" * 200 + "!",
        "((((.*a.*)*b.*)*c.*)*d.*)*" * 300,
    ],
)  # fmt: skip
def test_no_expression_takes_long(expression: str) -> None:
    selection = Selection(expression)
    for name in ("a" * 249, "ab" * 124, "a" * 60 + "!"):
        selection.matches(name)


@pytest.mark.parametrize(
    ("expression", "is_meant"),
    [
        ("orders|payments", False), ("(eu|us)-orders", False), ("(eu|us)?-.*", False), ("a+b.*", True),
        ("^aab$", True), (r"a\(b+\)+", False), ("[(a+)]+b", True), ("(aab)+", True), ("(?i:AAB)", True),
        (r"x{2}|a+b", True), ("(?P<name>aab)+", True), ("aa", False), ("ab", False), ("[[:alpha:]]*", True),
    ],
)  # fmt: skip
def test_valid_patterns_are_accepted(expression: str, is_meant: bool) -> None:
    assert Selection(expression).matches("aab") is is_meant


def test_a_selection_is_compared_and_shown_by_what_it_says() -> None:
    assert Selection("orders-.*", frozenset({1})) == Selection("orders-.*", frozenset({1})) != Selection("orders-.*")
    assert hash(Selection("orders")) == hash(Selection("orders"))
    assert repr(Selection("orders")) == "Selection(topics='orders', partitions=None)"


def test_a_selection_knows_whether_it_leaves_anything_out() -> None:
    assert not EVERYTHING.is_narrowed
    assert Selection("orders").is_narrowed
    assert Selection(".*", frozenset({0})).is_narrowed


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (None, None),
        ("0", {0}),
        ("0,2-4", {0, 2, 3, 4}),
        (" 7 , 3-3 ", {3, 7}),
        ("1-3,2-4", {1, 2, 3, 4}),
        (f"0-{MOST_PARTITIONS - 1}", set(range(MOST_PARTITIONS))),
    ],
)
def test_numbers_and_ranges_are_read(text: str | None, numbers: set[int] | None) -> None:
    assert parse_partitions(text) == numbers


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "0,2-4"),
        (" \t", "nothing is named"),
        ("orders", "'orders' in 'orders' .*0,2-4"),
        ("1,,2", "'' in '1,,2' is not a number"),
        ("-1", "'-1' in '-1' is not a number"),
        ("1-", "'1-' in '1-' is not a number"),
        ("1.5", "is not a number"),
        ("\u0661", "is not a number"),
        ("4-2", "'4-2' in '4-2' ends before"),
        (f"0-{MOST_PARTITIONS}", "names more than 100,000"),
        ("0-60000,70000-130000", "names more than 100,000"),
        ("0-9999999999", "names more than 100,000"),
        ("99999999999", "is not a number"),
    ],
)
def test_an_invalid_range_of_partitions_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^partitions: .*{why}"):
        parse_partitions(text)


@given(st.frozensets(st.integers(0, 2**31 - 1), min_size=1, max_size=20))
def test_numbers_that_are_written_down_are_read_again(numbers: frozenset[int]) -> None:
    assert parse_partitions(",".join(str(number) for number in numbers)) == numbers


@given(st.text(max_size=12))
def test_any_text_is_numbers_or_is_refused(text: str) -> None:
    try:
        parse_partitions(text)
    except ConfigurationError as refused:
        assert "partitions: " in str(refused)


@given(st.lists(st.integers(0, 6), max_size=5), st.integers(0, 40), st.none() | st.integers())
def test_all_take_in_turns_until_the_room_is_used_up(wanted: list[int], room: int, seed: int | None) -> None:
    shares = in_turns(wanted, room, seed)

    assert sum(shares) == min(room, sum(wanted))
    assert all(share <= each for share, each in zip(shares, wanted, strict=True))
    most = max(shares, default=0)
    assert all(share >= min(most - 1, each) for share, each in zip(shares, wanted, strict=True))
    assert in_turns(wanted, None, seed) == wanted


def test_a_seed_chooses_the_partitions_if_not_all_get_a_turn() -> None:
    assert {tuple(in_turns([1, 5, 0, 5, 5], 9, seed)) for seed in (None, *range(20))} == {(1, 3, 0, 3, 2)}
    assert in_turns([1, 5, 0, 5, 5], 2) == [1, 1, 0, 0, 0]
    assert len({tuple(in_turns([1, 5, 0, 5, 5], 2, seed)) for seed in range(20)}) == 4
    # However many partitions fail in every run, each of the others gets its turn.
    begun = {in_turns([1] * 100, 1, seed).index(1) for seed in range(0, 600_000_000, 300_000)}
    assert begun == set(range(100))


def planned_in_turns(due: Sequence[int], room: int | None) -> tuple[list[tuple[list[int], int]], list[int | None]]:
    """Plan partitions with so many segments due; return the plans with what is due, and what each was planned for."""
    asked: list[int | None] = []

    def plan_of(count: int, most: int | None) -> list[int] | None:
        asked.append(most)
        # Five of them go together only.
        taken = count if most is None else min(count, most)
        return None if count == 9 else list(range(0 if count == 5 and taken < 5 else taken))

    return list(plan_in_turns(due, plan_of, len, room, seed=1)), asked


def test_partitions_share_the_limit_and_pass_on_their_unused_share() -> None:
    found, _ = planned_in_turns([5, 9, 4, 4], 8)
    assert [(len(plan), due) for plan, due in found] == [(0, 5), (4, 4), (4, 4)]
    whole, asked = planned_in_turns([5, 9, 4, 4], None)
    assert [(len(plan), due) for plan, due in whole] == [(5, 5), (4, 4), (4, 4)]
    assert asked == [None] * 4


def test_no_more_plans_are_kept_than_the_room_has_segments() -> None:
    found, asked = planned_in_turns([4] * 50, 100)
    assert sum(len(plan) for plan, _ in found) == 100
    # Each has two in the end: all are planned again, and never for more.
    assert asked == [101] * 50 + [2] * 50
    found, asked = planned_in_turns([3, 3], 5)
    assert sorted(len(plan) for plan, _ in found) == [2, 3]
    assert asked[:2] == [6, 6]
