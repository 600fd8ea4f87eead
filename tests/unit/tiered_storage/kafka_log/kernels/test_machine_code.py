from __future__ import annotations

import os
import platform
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.kernels import machine_code

CODE = b"an object file"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one folder where code is kept here; compiling takes no time."""
    folder = tmp_path / "kept"
    monkeypatch.setattr(machine_code, "_folders", lambda: iter([folder]))
    monkeypatch.setattr(machine_code, "compiled_code", lambda: CODE)
    return folder


def test_code_is_kept_for_the_next_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_code.code_of_kernels() == CODE

    monkeypatch.setattr(machine_code, "compiled_code", lambda: pytest.fail("it is compiled already"))
    assert machine_code.code_of_kernels() == CODE
    (kept,) = folder.iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o644


@pytest.mark.parametrize("cut", [0, 5, 12, 20])
def test_code_that_is_cut_is_compiled_again(folder: Path, cut: int) -> None:
    machine_code.code_of_kernels()
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:cut])

    assert machine_code.code_of_kernels() == CODE
    assert kept.read_bytes() == whole


def test_a_bit_that_changed_is_found(folder: Path) -> None:
    machine_code.code_of_kernels()
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 1
        kept.write_bytes(bytes(changed))
        assert machine_code.code_of_kernels() == CODE
    assert kept.read_bytes() == whole


def test_a_file_exchanged_after_the_check_of_its_rights_is_not_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_code.code_of_kernels()
    (kept,) = folder.iterdir()
    other = folder / "of another user"
    machine_code._keep(b"other code", other)
    looks = os.stat

    def exchanged_after_a_look(path: os.PathLike[str] | int, **options: bool) -> os.stat_result:
        found = looks(path, **options)
        with suppress(FileNotFoundError):
            other.replace(kept)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", exchanged_after_a_look)
        patched.setattr(os, "fstat", exchanged_after_a_look)
        read = machine_code._kept_code(kept)

    assert (read, other.exists()) == (CODE, False)


def test_code_that_others_may_write_is_not_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_code.code_of_kernels()
    (kept,) = folder.iterdir()
    kept.chmod(0o620)
    monkeypatch.setattr(machine_code, "compiled_code", lambda: b"compiled here")

    assert machine_code.code_of_kernels() == b"compiled here"


def test_a_change_of_any_source_has_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in machine_code.SOURCES:
        (tmp_path / name).write_bytes(b"# a source\n")
    monkeypatch.setattr(machine_code, "_HERE", tmp_path)
    names = [machine_code.name_of_code()]
    for name in machine_code.SOURCES:
        (tmp_path / name).write_bytes(b"# a change\n")
        names.append(machine_code.name_of_code())

    assert len(set(names)) == len(machine_code.SOURCES) + 1


def test_each_process_compiles_if_no_folder_can_keep_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(machine_code, "_folders", lambda: iter([tmp_path / "file" / "folder"]))

    assert machine_code.code_of_kernels() == CODE
    assert machine_code.code_of_kernels() == CODE


def test_a_write_that_fails_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path, __: Path) -> None:
        raise OSError("no space")

    monkeypatch.setattr(Path, "replace", fail)

    assert machine_code.code_of_kernels() == CODE
    assert [*folder.iterdir()] == []


def test_code_of_another_user_is_neither_run_nor_replaced(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_code.code_of_kernels()
    (kept,) = folder.iterdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 12345)
    monkeypatch.setattr(machine_code, "_TRUSTED_USER", -1)
    monkeypatch.setattr(machine_code, "_folders", lambda: iter([folder, tmp_path / "own"]))
    monkeypatch.setattr(machine_code, "compiled_code", lambda: b"compiled here")

    assert machine_code.code_of_kernels() == b"compiled here"
    assert CODE in kept.read_bytes()
    assert [path.name for path in (tmp_path / "own").iterdir()] == [kept.name]


@pytest.mark.parametrize(("script", "reason"), [("echo no room >&2; exit 1", "no room"), (None, "No such file")])
def test_a_failed_compiler_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, reason: str
) -> None:
    monkeypatch.undo()
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))

    with pytest.raises(ConfigurationError, match=f"{reason}"):
        machine_code.compiled_code()


def test_a_process_that_is_forked_while_kernels_are_loaded_loads_them_for_itself() -> None:
    program = """
import os, sys, threading, time
from tiered_storage.kafka_log.kernels import machine_code

started = threading.Event()

def load_slowly():
    started.set()
    time.sleep(3)
    return slow()

slow, machine_code.code_of_kernels = machine_code.code_of_kernels, load_slowly
threading.Thread(target=machine_code.load_kernels, daemon=True).start()
started.wait()
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
machine_code.code_of_kernels = slow
machine_code.load_kernels()
os._exit(0)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("machine", "features", "checksums", "wide"),
    [
        ("x86_64", {"sse4.2", "pclmul", "avx512f", "vpclmulqdq"}, True, True),
        ("x86_64", {"sse4.2", "pclmul", "avx512f"}, True, False),
        ("x86_64", {"sse4.2", "pclmul", "avx2", "vpclmulqdq"}, True, False),
        ("x86_64", {"sse4.2", "avx512f", "vpclmulqdq"}, False, False),
        ("aarch64", {"crc", "aes"}, False, False),
    ],
)
def test_instructions_are_those_that_the_cpu_says_it_has(
    monkeypatch: pytest.MonkeyPatch, machine: str, features: set[str], *, checksums: bool, wide: bool
) -> None:
    from llvmlite import binding

    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: binding.FeatureMap.fromkeys(features, True))
    # Without what the processes of other tests keep of the real CPU.
    monkeypatch.setattr(machine_code, "has_checksum_instructions", machine_code.has_checksum_instructions.__wrapped__)

    assert machine_code.has_checksum_instructions() is checksums
    assert machine_code.has_wide_products.__wrapped__() is wide
