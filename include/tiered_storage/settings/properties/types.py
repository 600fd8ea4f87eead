"""The types that settings have: numbers, folders, URLs, retention limits, class names.

Each takes what YAML, an environment variable or a DAG run's parameter gives (text, or a JSON value) and refuses
invalid values with the reason. Relative paths begin in `base` of the validation context, or in the project's root.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from tiered_storage.redaction import SecretUrl, refuse_credentials, refuse_credentials_in_endpoint
from tiered_storage.settings.properties.cluster_files import project_root

UNLIMITED = -1
AS_THE_TOTAL = -2
_MOST_JITTER = 0.5

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")
_SQLITE_FILE = re.compile(r"(sqlite(?:\+\w+)?:///)([^?]*)(.*)", re.DOTALL)
_IDENTIFIER = re.compile(r"[A-Za-z0-9._-]{1,250}")
_ROLE = re.compile(r"arn:[a-z0-9-]+:iam::[^:\s]*:role/\S{1,1024}")
_BROKER_ID = re.compile(r"[0-9]{1,9}")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def _base(info: ValidationInfo) -> Path:
    return info.context["base"] if info.context else project_root()


def _no_switch(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")  # noqa: TRY004 - pydantic collects only ValueErrors
    return value


def _not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("0 would let every closed segment expire at once")
    return value


def _empty_is_none(value: object) -> object:
    return None if value == "" else value


def _folder(value: object, info: ValidationInfo) -> Path:
    if not isinstance(value, str | Path) or not str(value).strip():
        raise ValueError("it does not name a folder")
    if "\0" in str(value):
        raise ValueError("a path cannot contain NUL")
    return _base(info) / Path(str(value).strip()).expanduser()


def _optional_file(value: object, info: ValidationInfo) -> Path | None:
    if value is None or value == "":
        return None
    try:
        return _folder(value, info)
    except ValueError as error:
        raise ValueError("it does not name a file") from error


def _optional_folder(value: object, info: ValidationInfo) -> Path | None:
    return None if value is None or value == "" else _folder(value, info)


def _connections(value: object) -> tuple[str, ...]:
    return _identifiers(value, "a connection id")


def _queues(value: object) -> tuple[str, ...]:
    return _identifiers(value, "the name of a queue")


def _identifiers(value: object, noun: str) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        raise ValueError("it is neither text nor a list")  # noqa: TRY004 - pydantic collects only ValueErrors
    found = tuple(str(name).strip() for name in names if str(name).strip())
    if not all(_IDENTIFIER.fullmatch(name) for name in found):
        raise ValueError(f"{noun} has letters, digits, dots, underscores and hyphens, at most 250")
    return tuple(dict.fromkeys(found))


def _roles(value: object) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        raise ValueError("it is neither text nor a list")  # noqa: TRY004 - pydantic collects only ValueErrors
    found = tuple(str(name).strip() for name in names if str(name).strip())
    if not all(_ROLE.fullmatch(name) for name in found):
        raise ValueError("the ARN of a role looks like arn:aws:iam::123456789012:role/name")
    return found


def _names(value: object) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError("it is neither text nor a list of texts")
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))


def _folders(value: object, info: ValidationInfo) -> tuple[Path, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        raise ValueError("it is neither text nor a list")  # noqa: TRY004 - pydantic collects only ValueErrors
    folders = tuple(_folder(name, info) for name in names if name != "")
    twice = {str(folder) for folder in folders if folders.count(folder) > 1}
    if twice:
        raise ValueError(f"{', '.join(sorted(twice))} is listed twice")
    return folders


def _broker_folders(value: object, info: ValidationInfo) -> dict[int, tuple[Path, ...]]:
    given = dict(_named_folders(value)) if isinstance(value, str) else value
    if not isinstance(given, Mapping):
        raise ValueError("it is neither text nor a mapping")  # noqa: TRY004 - pydantic collects only ValueErrors
    found: dict[int, tuple[Path, ...]] = {}
    for broker, folders in given.items():
        if not _BROKER_ID.fullmatch(str(broker)):
            raise ValueError(f"{broker!r} is not the id of a broker, which is a whole number")
        found[int(broker)] = _folders(folders, info)
        if not found[int(broker)]:
            raise ValueError(f"it names no folder of broker {broker}")
    return found


def _named_folders(text: str) -> Iterator[tuple[str, str]]:
    """Yield broker ids and their folders of a text such as `1=/data/a,/data/b;2=/data/c`."""
    seen: set[str] = set()
    for part in filter(None, map(str.strip, text.split(";"))):
        broker, _, folders = (each.strip() for each in part.partition("="))
        if broker in seen:
            raise ValueError(f"it names broker {broker} twice")
        seen.add(broker)
        yield broker, folders


def _class_path(value: object, info: ValidationInfo) -> tuple[Path, ...]:
    names = value.replace(os.pathsep, ",").split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        raise ValueError("it is neither text nor a list")  # noqa: TRY004 - pydantic collects only ValueErrors
    return tuple(dict.fromkeys(_folder(name, info) for name in names if name != ""))


def _storage_url(value: object, info: ValidationInfo) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("it does not name a place")
    text = value.strip()
    if "://" not in text and ":" not in text.split("/")[0]:
        return _folder(text, info).as_uri()
    scheme = _SCHEME.match(text)
    if scheme is None:
        raise ValueError("it is not a URL: it must begin with a scheme and ://")
    refuse_credentials(text)
    rest = text[scheme.end() :]
    if scheme.group() == "file://" and not rest.startswith("/"):
        raise ValueError("a file URL has three slashes and an absolute path: file:///folder")
    if not rest.strip("/"):
        raise ValueError("it does not name a bucket or folder")
    return text.rstrip("/")


def _endpoint(value: str) -> str:
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", value):
        raise ValueError("it is not an http or https URL")
    refuse_credentials_in_endpoint(value)
    return value.rstrip("/")


def _metadata_url(value: object, info: ValidationInfo) -> object:
    if isinstance(value, SecretUrl):
        return value
    if not isinstance(value, str) or _SCHEME.match(value) is None:
        raise ValueError("it is not a URL")
    sqlite = _SQLITE_FILE.fullmatch(value)
    if sqlite is None:
        if value.startswith("sqlite"):
            raise ValueError("a SQLite URL has three slashes and then a path")
        return value
    scheme, path, query = sqlite.groups()
    if path in ("", ":memory:"):
        raise ValueError("each process would create an empty metadata store of its own, in memory: name a file")
    return value if path.startswith("file:") else f"{scheme}{_base(info) / path}{query}"


def _cleanup_policy(value: object) -> object:
    if not isinstance(value, str):
        return value
    return ",".join(sorted(part.strip() for part in value.split(",")))


def _price(value: object) -> object:
    if value is None or value == "":
        return None
    _no_switch(value)
    try:
        price = float(str(value))
    except ValueError as error:
        raise ValueError("it is not a number") from error
    if not (math.isfinite(price) and price >= 0):
        raise ValueError("a price is 0 or more")
    return price


def _jitter(value: object) -> float:
    _no_switch(value)
    try:
        jitter = float(str(value))
    except ValueError as error:
        raise ValueError("it is not a number") from error
    if not 0 <= jitter <= _MOST_JITTER:
        raise ValueError(f"a jitter is from 0 to {_MOST_JITTER}")
    return jitter


def topic_name(name: str) -> str:
    """Return the topic name `name`. Raises ValueError if Kafka would refuse it."""
    if not _TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise ValueError("it is not a topic name: letters, digits, dots, underscores and hyphens, at most 249")
    return name


Whole = Annotated[int, BeforeValidator(_no_switch)]
TotalRetention = Annotated[int, BeforeValidator(_no_switch), AfterValidator(_not_zero)]
Folder = Annotated[Path, BeforeValidator(_folder)]
Folders = Annotated[tuple[Path, ...], BeforeValidator(_folders)]
BrokerFolders = Annotated[Mapping[int, tuple[Path, ...]], BeforeValidator(_broker_folders)]
ClassPath = Annotated[tuple[Path, ...], BeforeValidator(_class_path)]
OptionalFolder = Annotated[Path | None, BeforeValidator(_optional_folder)]
Connections = Annotated[tuple[str, ...], BeforeValidator(_connections)]
Queues = Annotated[tuple[str, ...], BeforeValidator(_queues)]
Roles = Annotated[tuple[str, ...], BeforeValidator(_roles)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
OptionalFile = Annotated[Path | None, BeforeValidator(_optional_file)]
OptionalPrice = Annotated[float | None, BeforeValidator(_price)]
Jitter = Annotated[float, BeforeValidator(_jitter)]
OptionalText = Annotated[str | None, BeforeValidator(_empty_is_none)]
OptionalEndpoint = Annotated[Annotated[str, AfterValidator(_endpoint)] | None, BeforeValidator(_empty_is_none)]
StorageUrl = Annotated[str, BeforeValidator(_storage_url)]
MetadataUrl = Annotated[SecretUrl, BeforeValidator(_metadata_url)]
CleanupPolicy = Annotated[Literal["delete", "compact", "compact,delete"], BeforeValidator(_cleanup_policy)]
TopicName = Annotated[str, AfterValidator(topic_name)]
