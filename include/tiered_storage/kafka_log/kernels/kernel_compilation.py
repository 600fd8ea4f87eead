"""Compile the kernels to one object file: the only module that needs numba, which is slow to import.

As a program it writes that file to standard output, for machine_code.py, which caches it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

from llvmlite import binding
from numba import njit, types

from tiered_storage.kafka_log.kernels import decode_kernels, metadata_kernels, scan_kernels

_SOURCES: dict[str, Callable[..., int]] = {
    "count_batches": scan_kernels.count_batches,
    "read_headers": scan_kernels.read_headers,
    "first_mismatch": scan_kernels.first_mismatch,
    "place_batches": decode_kernels.place_batches,
    "decode_batches": decode_kernels.decode_batches,
    "decode_metadata": metadata_kernels.decode_metadata,
}
_EXTERNAL_LINKAGE = 0
_INNER = "inner_"
_EXCEPTION = ".const.pickle"
"""The prefix of numba's names for the exceptions that compiled code can raise."""
_LIBRARY = {"memcpy", "memmove", "memset"}


def compile_kernels() -> bytes:
    """Return an object file for this CPU that defines each kernel under its own name, as C would call it.

    Raises RuntimeError if a kernel would need Python to run, or could raise an exception.
    """
    whole = binding.parse_assembly("")
    for name, function in _SOURCES.items():
        whole.link_in(_module(name, function))
        whole.link_in(_caller(name, function.__code__.co_argcount))
    needed = {each.name for each in whole.functions if each.is_declaration and not each.name.startswith("llvm.")}
    if needed - _LIBRARY:
        raise RuntimeError(f"the kernels call {', '.join(sorted(needed - _LIBRARY))}: use only numbers and addresses")
    if any(each.name.startswith(_EXCEPTION) for each in whole.global_variables):
        raise RuntimeError("a kernel may raise an exception, which would be lost: return a status instead")
    code: bytes = _target_machine().emit_object(whole)
    return code


def _target_machine() -> Any:
    """Return LLVM's target machine for the CPU of this machine."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    features = binding.get_host_cpu_features().flatten()
    target = binding.Target.from_default_triple()
    return target.create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features, opt=3, codemodel="jitdefault", jit=True
    )


def _module(name: str, function: Callable[..., int]) -> Any:
    """Return LLVM's module of a kernel, without what numba adds for callers in Python."""
    compiled = cast("Any", njit)(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    signature = (types.int64,) * function.__code__.co_argcount
    compiled.compile(signature)
    module = binding.parse_assembly(compiled.inspect_llvm(signature))
    (kernel,) = (each for each in module.functions if not each.is_declaration and _is_external(each))
    kernel.name = _INNER + name
    return module


def _caller(name: str, arity: int) -> Any:
    """Return LLVM's module of a function that calls a kernel as numba does and returns its result.

    numba passes addresses for the result and for an exception, which no kernel may have, before the arguments.
    """
    kinds, arguments = ", ".join(["i64"] * arity), ", ".join(f"i64 %{i}" for i in range(arity))
    return binding.parse_assembly(f"""
        declare i32 @{_INNER}{name}(ptr, ptr, {kinds})
        define i64 @{name}({arguments}) {{
            %result = alloca i64
            %exception = alloca ptr
            call i32 @{_INNER}{name}(ptr %result, ptr %exception, {arguments})
            %number = load i64, ptr %result
            ret i64 %number
        }}""")


def _is_external(function: Any) -> bool:
    return int(function.linkage.value) == _EXTERNAL_LINKAGE


if __name__ == "__main__":
    sys.stdout.buffer.write(compile_kernels())
