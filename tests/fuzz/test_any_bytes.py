"""Every target on what hypothesis makes of its seeds, and on all that fuzzing has found so far."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.targets import TARGETS
from support.records import USUAL_EXAMPLES
from tiered_storage.kafka_log.columnar import decoder
from tiered_storage.kafka_log.columnar.chunk_memory import ChunkMemory

FOUND = sorted((Path(__file__).parent / "found").iterdir())
"""Inputs that a target once fell over, each named by its target and what was wrong."""

EXAMPLES = 10 * USUAL_EXAMPLES
"""Most targets are done with an input in less than a millisecond."""
FEW = {"log_directory": EXAMPLES // 15, "dump": EXAMPLES // 5, "leftovers": EXAMPLES // 5}
"""Targets that write many files for each example."""
_INSERTED = st.binary(max_size=4) | st.sampled_from(
    [b"\xff" * 4, b"\x7f" + b"\xff" * 7, b"\x80" * 9 + b"\x01", bytes(8)]
)
_EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 8), _INSERTED), max_size=4)


@pytest.mark.parametrize("name", list(TARGETS))
def test_any_bytes_give_a_value_or_our_error(name: str) -> None:
    target = TARGETS[name]
    seeds = list(target.seeds())

    @settings(deadline=None, max_examples=FEW.get(name, EXAMPLES))
    @given(seed=st.sampled_from(seeds) | st.binary(max_size=80), edits=_EDITS)
    def check(seed: bytes, edits: list[tuple[float, int, bytes]]) -> None:
        content = bytearray(seed)
        for place, removed, inserted in edits:
            at = int(place * len(content))
            content[at : at + removed] = inserted
        target.run(bytes(content))

    check()


@pytest.mark.parametrize("path", FOUND, ids=[path.name for path in FOUND])
def test_inputs_that_once_failed_still_pass(path: Path) -> None:
    TARGETS[path.name.partition(".")[0]].run(path.read_bytes())


def test_targets_leave_the_library_to_other_tests_as_it_is() -> None:
    for name in ("records", "built_records"):
        for seed in TARGETS[name].seeds():
            TARGETS[name].run(seed)

    assert vars(decoder)["ChunkMemory"] is ChunkMemory
