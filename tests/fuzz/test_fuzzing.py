"""Fuzzing with coverage as a guide: two minutes in all here, a night's share in `make nightly`.

A failing input is kept in .state/fuzz/failing, and the message names it. Once mended, it goes to `found` beside this
file, under the name of its target. FUZZ_SECONDS says for how long each target is fuzzed at night.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fuzz.runner import FindingError, Fuzzing
from fuzz.targets import FAULTY_TARGETS, TARGETS, WITH_KERNELS

SECONDS = 4
"""Two targets are fuzzed at once: a minute's wait for all of them."""
NIGHTLY_SECONDS = int(os.environ.get("FUZZ_SECONDS", "120"))
"""With some thirty runs that makes an hour, which `make nightly` shares out among all cores."""
MODES = [
    *((name, False) for name in TARGETS),
    *((name, True) for name in WITH_KERNELS),
]


@pytest.fixture
def failing(state_directory: Path) -> Path:
    return state_directory / "fuzz" / "failing"


@pytest.mark.timeout(300)
def test_some_seconds_of_fuzzing_find_nothing(tmp_path: Path, failing: Path) -> None:
    assert Fuzzing(SECONDS, tmp_path, failing, seed=1).run(list(TARGETS)) > len(TARGETS)


def test_some_seconds_of_fuzzing_interpreted_kernels_find_nothing(tmp_path: Path, failing: Path) -> None:
    assert Fuzzing(SECONDS, tmp_path, failing, seed=1).run(WITH_KERNELS, interpreted=True) > len(WITH_KERNELS)


def test_every_fault_is_found_and_its_input_named(tmp_path: Path) -> None:
    failing = tmp_path / "failing"
    names = sorted(name for name in FAULTY_TARGETS if name != "_loop")

    with pytest.raises(FindingError, match=f"{', '.join(names)}") as found:
        Fuzzing(30, tmp_path / "corpora", failing, seed=1).run(names)

    inputs = sorted(failing.iterdir())
    assert [path.name.partition("-")[0] for path in inputs] == names
    assert all(b"!" in path.read_bytes() and str(path) in str(found.value) for path in inputs)


def test_an_input_of_another_target_that_is_fuzzed_at_the_same_time_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall_over(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        for name in ("records-crash-1", "built_records-crash-2"):
            (tmp_path / name).touch()
        return subprocess.CompletedProcess([], 1, "", "records fell over")

    monkeypatch.setattr(subprocess, "run", fall_over)
    with pytest.raises(FindingError) as found:
        Fuzzing(1, tmp_path, tmp_path).run(["records"])

    assert str(tmp_path / "records-crash-1") in str(found.value)
    assert "built_records" not in str(found.value)


@pytest.mark.nightly
def test_a_hang_is_found_and_its_input_named(tmp_path: Path) -> None:
    with pytest.raises(FindingError, match=r"_loop.*\S+/_loop-timeout-"):
        Fuzzing(60, tmp_path / "corpora", tmp_path / "failing", seed=1).run(["_loop"])


@pytest.mark.nightly
@pytest.mark.timeout(NIGHTLY_SECONDS + 120)
@pytest.mark.parametrize(("name", "interpreted"), MODES, ids=[f"{name}{' interpreted' * how}" for name, how in MODES])
def test_hours_of_fuzzing_find_nothing(name: str, interpreted: bool, failing: Path, state_directory: Path) -> None:
    Fuzzing(NIGHTLY_SECONDS, state_directory / "fuzz" / "corpora", failing).run([name], interpreted=interpreted)
