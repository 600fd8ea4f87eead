"""The compiled kernels, cached from one process to the next, and the functions in them.

`python -m tiered_storage.kafka_log.kernels.machine_code` compiles them in advance, to set up a machine: it takes some
seconds.

    at    bytes
     0        8  "RLKERNL2"
     8        4  CRC-32 of what follows, big-endian
    12      ...  an object file

The file's name is a hash of what it was compiled from: the kernels' sources, the compiler, the CPU. It is stored beside
the sources, or if these are not writable, in the user's cache; if neither is writable, each process compiles its own.
A separate process compiles it: the compiler is slow to import, and no process can be forked while it works. Loading the
kept code takes 0.2 s of CPU; with numba's own cache it takes 0.6 s, half of that for the import alone.

Code that another user (except root) wrote or could change is never run.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import os
import platform
import stat
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from tiered_storage.errors import ConfigurationError

SOURCES = (
    "checksum_kernels.py",
    "constants.py",
    "decode_kernels.py",
    "kernel_compilation.py",
    "kernel_memory.py",
    "metadata_kernels.py",
    "record_kernels.py",
    "scan_kernels.py",
    "wide_checksum.py",
)
"""All that the code depends on, besides this package's dependencies."""

_MAGIC = b"RLKERNL2"
_HEAD = len(_MAGIC) + 4
_HERE = Path(__file__).parent
_READABLE_BY_ALL = 0o644
_TRUSTED_USER = 0
"""root, who can change anything anyway"""
_WRITEABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_COMPILE_SECONDS = 300

BRIEF_BYTES = 8 << 20
"""The headers of a window up to this size are read within milliseconds, however small the batches."""
_X86 = ("x86_64", "AMD64")
_CHECKSUM_FEATURES = ("sse4.2", "pclmul")
_WIDE_FEATURES = ("avx512f", "vpclmulqdq")

Kernel = Callable[..., int]
"""Takes and returns integers of 64 bits."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels by name; scan_kernels.py, decode_kernels.py and metadata_kernels.py document each."""

    count_batches: Kernel
    read_headers: Kernel
    first_mismatch: Kernel
    place_batches: Kernel
    decode_batches: Kernel
    decode_metadata: Kernel


ARITIES = {
    "count_batches": 2,
    "read_headers": 8,
    "first_mismatch": 6,
    "place_batches": 9,
    "decode_batches": 13,
    "decode_metadata": 4,
}


class _Loader:
    """Loads the kernels once. A process forked while another thread loads them loads them itself."""

    def __init__(self) -> None:
        self._kernels: tuple[Kernels, Kernels] | None = None
        self._kept: list[Any] = []
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def kernels(self) -> tuple[Kernels, Kernels]:
        """Return the kernels that release the GIL, and those that keep it."""
        if self._kernels is None:
            with self._lock:
                if self._kernels is None:
                    self._kernels = self._load()
        return self._kernels

    def _load(self) -> tuple[Kernels, Kernels]:
        engine = _engine_of(code_of_kernels())
        self._kept.append(engine)  # it owns the memory of the functions
        free, kept = (
            Kernels(**{field.name: _function(engine, field.name, prototype) for field in fields(Kernels)})
            for prototype in (ctypes.CFUNCTYPE, ctypes.PYFUNCTYPE)
        )
        return free, kept

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()


_loader = _Loader()


def load_kernels() -> Kernels:
    """Return the kernels, compiled now unless they are cached. While they run, other threads can run.

    Raises ConfigurationError if they cannot be compiled.
    """
    return _loader.kernels()[0]


def load_brief_kernels() -> Kernels:
    """Return kernels that keep the GIL while they run: for work that takes less time than getting the GIL back.

    Scanning the headers in up to BRIEF_BYTES is such work. Raises as `load_kernels`.
    """
    return _loader.kernels()[1]


@functools.cache
def has_checksum_instructions() -> bool:
    """Return whether the CPU has the instructions with which checksum_kernels.py computes CRC-32C."""
    return platform.machine() in _X86 and _has_features(_CHECKSUM_FEATURES)


@functools.cache
def has_wide_products() -> bool:
    """Return whether the CPU has the instructions with which wide_checksum.py computes CRC-32C faster."""
    return has_checksum_instructions() and _has_features(_WIDE_FEATURES)


def _has_features(names: Sequence[str]) -> bool:
    from llvmlite import binding  # noqa: PLC0415 -- a tenth of a second, for those who scan

    features = binding.get_host_cpu_features()
    return all(features.get(name, False) for name in names)


def address_of(array: NDArray[Any]) -> int:
    """Return the address of a contiguous array; keep the array alive while a kernel uses it."""
    address: int = pa.py_buffer(array).address  # numpy takes several times as long
    return address


def code_of_kernels() -> bytes:
    """Return the object file of the kernels: the cached one, or one compiled now, and cached if possible."""
    name = f"kernels-{name_of_code()}.o"
    for folder in _folders():
        if code := _kept_code(folder / name):
            return code
    code = compiled_code()
    for folder in _folders():
        with contextlib.suppress(OSError):
            _keep(code, folder / name)
            break
    return code


def kept_kernels() -> Path | None:
    """Return the path of cached code that this machine can run; None if there is none yet."""
    name = f"kernels-{name_of_code()}.o"
    return next((folder / name for folder in _folders() if _kept_code(folder / name)), None)


def compiled_code() -> bytes:
    """Return the output of kernel_compilation.py, run in its own process without numba's settings.

    Raises ConfigurationError if that fails.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-P", "-m", "tiered_storage.kafka_log.kernels.kernel_compilation"]
    try:
        done = subprocess.run(  # noqa: S603 -- this Python and a module of ours
            command, cwd=_HERE, env=environment, capture_output=True, check=True, timeout=_COMPILE_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        output = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()[-2000:]
        reason = f"the loops that read logs could not be compiled by {' '.join(command)}: {error} {output}"
        raise ConfigurationError(f"{reason}; install the locked requirements again, as make setup does") from error
    return done.stdout


def name_of_code() -> str:
    """Return a file name that identifies what the code is compiled from."""
    from llvmlite import binding  # noqa: PLC0415 -- a tenth of a second, for those who scan

    digest = hashlib.sha256()
    for part in (version("numba"), version("llvmlite"), binding.get_default_triple(), binding.get_host_cpu_name()):
        digest.update(part.encode() + b"\0")
    digest.update(binding.get_host_cpu_features().flatten().encode())
    digest.update(b"\0%d%d" % (has_checksum_instructions(), has_wide_products()))
    for source in SOURCES:
        digest.update(b"\0" + (_HERE / source).read_bytes())
    return digest.hexdigest()[:24]


def _folders() -> Iterator[Path]:
    """Yield the folders where code may be cached, the best first."""
    yield _HERE / "__pycache__"
    with contextlib.suppress(RuntimeError):  # a user without a home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "remote-log"


def _kept_code(path: Path) -> bytes | None:
    """Return the code in `path`; None if there is none, it is corrupt, or another user could have written it."""
    try:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            content = file.read()
    except OSError:
        return None
    if state.st_uid not in (_TRUSTED_USER, os.geteuid()) or state.st_mode & _WRITEABLE_BY_OTHERS:
        return None
    code = content[_HEAD:]
    is_whole = content[:_HEAD] == _MAGIC + zlib.crc32(code).to_bytes(4, "big")
    return code if is_whole and code else None


def _keep(code: bytes, path: Path) -> None:
    """Write `code` to `path` atomically: other processes may do the same now. Raises OSError if it cannot.

    Another user's file stays: two users would replace each other's for ever.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and path.stat().st_uid != os.geteuid():
        raise FileExistsError(errno.EEXIST, "it belongs to another user", str(path))
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            file.write(_MAGIC + zlib.crc32(code).to_bytes(4, "big") + code)
            os.fchmod(file.fileno(), _READABLE_BY_ALL)
            file.close()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink()
            raise


def _engine_of(code: bytes) -> Any:
    """Return the engine that holds the functions of an object file in memory."""
    from llvmlite import binding  # noqa: PLC0415 -- a tenth of a second, for those who scan

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(codemodel="jitdefault", jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


def _function(engine: Any, name: str, prototype: Callable[..., Any]) -> Kernel:
    numbers = [ctypes.c_int64] * (1 + ARITIES[name])
    kernel: Kernel = prototype(*numbers)(engine.get_function_address(name))
    return kernel


if __name__ == "__main__":
    load_kernels()
