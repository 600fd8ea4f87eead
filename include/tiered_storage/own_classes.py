"""Load a class of the user's own by its dotted name, from where Python looks or from a class path.

The class path's folders, wheels and zip archives come last in `sys.path`: they never replace what is installed.
"""

from __future__ import annotations

import importlib
import platform
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tiered_storage.errors import ConfigurationError, TieredStorageError


def load_class(manager: str, name: str, class_path: Sequence[Path], border: type, methods: Sequence[str]) -> type:
    """Return the class `name` (package.module.Class) that the settings {manager}.class.name and .class.path name.

    Raises ConfigurationError if the class path or the class cannot be used, or the class lacks one of `methods`; those
    that `border`, a protocol, only declares do not count.
    """
    setting = f"{manager}.class.name is {name!r}"
    module_name, _, class_name = name.rpartition(".")
    if not module_name:
        raise ConfigurationError(f"{setting}, which does not name a class: give package.module.Class")
    _extend_path(f"{manager}.class.path", class_path)
    try:
        found = getattr(importlib.import_module(module_name), class_name, None)
    except ImportError as error:
        raise ConfigurationError(
            f"{setting}, which cannot be imported on {platform.node()} ({error}): install its package there, or name "
            f"the folder of the package in {manager}.class.path; it must be a class of Python"
        ) from error
    except Exception as error:
        raise ConfigurationError(
            f"{setting}, whose module cannot be imported ({_described(error)}): correct the module"
        ) from error
    if not isinstance(found, type):
        raise ConfigurationError(f"{setting}: {module_name} has no class {class_name}: correct the name")
    declared = (method for method in methods if _is_missing(found, method, border))
    missing = list(dict.fromkeys([*declared, *sorted(getattr(found, "__abstractmethods__", ()))]))
    if missing:
        raise ConfigurationError(
            f"{setting}, which is not a {border.__name__}: it lacks {', '.join(missing)}: add them to the class"
        )
    return found


def call_own(manager: str, name: str, called: Callable[[], Any], *, parts: Sequence[str] = ()) -> Any:
    """Return what `called` returns, a call of the class `name`, after checking that it has all `parts`.

    Raises ConfigurationError if it lacks one, and for an exception, but passes TieredStorageError through.
    """
    setting = f"{manager}.class.name is {name!r}"
    try:
        found = called()
    except TieredStorageError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{setting}, which cannot be opened ({_described(error)}): correct the options that the settings give it, "
            "or the class"
        ) from error
    missing = [part for part in parts if getattr(found, part, None) is None]
    if not missing:
        return found
    if callable(close := getattr(found, "close", None)):
        close()
    raise ConfigurationError(f"{setting}: what its open returns lacks {', '.join(missing)}: correct the class")


def _is_missing(found: type, method: str, border: type) -> bool:
    own = getattr(found, method, None)
    return own is None or own is getattr(border, method, None)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _extend_path(setting: str, class_path: Sequence[Path]) -> None:
    for path in class_path:
        if not path.exists():
            raise ConfigurationError(
                f"{setting} names {path}, which is not on {platform.node()}: put it there, or correct the setting"
            )
        if not path.is_dir() and not zipfile.is_zipfile(path):
            raise ConfigurationError(
                f"{setting} names {path}, which is neither a folder nor a wheel or zip archive: name one"
            )
        if str(path) not in sys.path:
            sys.path.append(str(path))
            importlib.invalidate_caches()
