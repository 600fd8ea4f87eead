"""However often deletions move the global log start, an undelete finds where it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.remote_log.model import MAX_EARLIER_LOG_STARTS, PartitionState

HOUR = 3_600_000


@given(
    st.integers(MAX_EARLIER_LOG_STARTS, 2 * MAX_EARLIER_LOG_STARTS),
    st.sampled_from([0, 1, 1_000, HOUR]),
    st.integers(1, 10**13),
)
def test_a_log_start_within_the_grace_is_kept_however_many_moves_follow_it(moves: int, gap_ms: int, began: int) -> None:
    state = PartitionState(7)
    true_starts: list[tuple[int, int]] = []
    """The global log start until each moment, and that moment."""
    for number in range(moves):
        now = began + number * gap_ms
        true_starts.append((state.log_start_offset or 0, now))
        state = state.with_log_start(10 * (number + 1), now)

    assert len(state.earlier_log_starts) <= MAX_EARLIER_LOG_STARTS
    assert state.log_start_before(began) == 7
    assert state.log_start_before(now + 1) == state.log_start_offset
    for true_start, moment in true_starts:
        found = state.log_start_before(moment)
        age = now - moment
        # Where several moves count as one, it is as if the first of them had been undone too, never as if none was.
        assert found <= true_start
        assert found >= min(start for start, at in true_starts if at >= moment - age // 10 - gap_ms)
