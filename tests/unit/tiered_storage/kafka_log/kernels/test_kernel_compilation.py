from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import pytest

from tiered_storage.kafka_log.kernels import (
    decode_kernels,
    kernel_compilation,
    machine_code,
    metadata_kernels,
    scan_kernels,
)
from tiered_storage.kafka_log.kernels.machine_code import SOURCES, Kernels, load_brief_kernels, load_kernels

PACKAGE = Path(kernel_compilation.__file__).parent
_KERNELS = "tiered_storage.kafka_log.kernels"
_PYTHON_API = 4
"""ctypes' flag of a function that is called with the GIL held."""


def test_each_kernel_is_called_with_as_many_arguments_as_it_takes() -> None:
    sources = {**vars(scan_kernels), **vars(decode_kernels), **vars(metadata_kernels)}

    arities = {field.name: sources[field.name].__code__.co_argcount for field in fields(Kernels)}

    assert arities == machine_code.ARITIES


def test_other_threads_run_while_a_kernel_works_but_for_brief_ones() -> None:
    for kernels, keeps_the_gil in ((load_kernels(), False), (load_brief_kernels(), True)):
        for field in fields(Kernels):
            flags: int = getattr(kernels, field.name)._flags_
            assert bool(flags & _PYTHON_API) == keeps_the_gil, field.name


def test_a_kernel_that_needs_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_compilation, "_SOURCES", {"needs": lambda at: len([at])})

    with pytest.raises(RuntimeError, match=r"the kernels call .*NRT"):
        kernel_compilation.compile_kernels()


def test_a_kernel_that_may_raise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(address: int) -> int:
        if address:
            raise ValueError
        return 0

    for kernel in (raises, lambda one, other: one // other):
        monkeypatch.setattr(kernel_compilation, "_SOURCES", {"kernel": kernel})
        with pytest.raises(RuntimeError, match="exception"):
            kernel_compilation.compile_kernels()


def test_whatever_the_kernels_are_made_from_is_in_the_name_of_their_code() -> None:
    pending, seen = ["kernel_compilation.py"], set[str]()
    while pending:
        name = pending.pop()
        if name in seen or name == "machine_code.py":
            continue
        seen.add(name)
        pending += _imported_modules((PACKAGE / name).read_text())

    assert seen == set(SOURCES)


def _imported_modules(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == _KERNELS:
            found += [f"{each.name}.py" for each in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{_KERNELS}."):
            found.append(f"{(node.module or '').rpartition('.')[2]}.py")
    return found
