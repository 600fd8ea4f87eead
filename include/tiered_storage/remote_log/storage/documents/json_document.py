"""Small JSON objects in the store, validated on reading: anybody may have changed them.

Each has `format_version`; a later one is refused, since its fields could have another meaning. Unknown keys are
ignored: a later release may add some without a new version.

The fields of a document are those of a dataclass. The types below say what a field may hold, and how it is written.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import astuple, dataclass, fields
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, GetPydanticSchema, PlainSerializer, TypeAdapter, ValidationError
from pydantic_core import core_schema

from tiered_storage.errors import LaterVersionError, RemoteObjectCorruptError

MAX_DOCUMENT_BYTES = 8 << 20
_VERSION = "format_version"
_CHECKSUM = re.compile("[0-9a-f]{8}")

Document = TypeVar("Document")
_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _parsed_checksum(value: object) -> int:
    if not isinstance(value, str) or not _CHECKSUM.fullmatch(value):
        raise ValueError("a CRC-32C of 8 hex digits is expected")
    return int(value, 16)


def in_a_list(kind: type[Any]) -> GetPydanticSchema:
    """Return the schema of a dataclass of non-negative integers, which a document holds as the list of its values."""
    values = core_schema.tuple_schema([core_schema.int_schema(strict=True, ge=0, lt=2**63)] * len(fields(kind)))
    as_list = core_schema.plain_serializer_function_ser_schema(astuple)
    return GetPydanticSchema(
        lambda _, __: core_schema.no_info_after_validator_function(
            lambda found: kind(*found), values, serialization=as_list
        )
    )


Text = Annotated[str, Field(min_length=1)]
Natural = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Timestamp = Annotated[int, Field(strict=True, ge=-1, lt=2**63)]
"""In ms; -1: none."""
Int32 = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Checksum = Annotated[int, BeforeValidator(_parsed_checksum), PlainSerializer("{:08x}".format)]
"""A CRC-32C, 8 hex digits in the document."""


@dataclass(frozen=True, slots=True)
class _Versioned:
    format_version: Annotated[int, Field(strict=True, ge=1, lt=2**63)]


def adapter_of(kind: type[Document]) -> TypeAdapter[Document]:
    """Return the reader and writer of `kind`, built once: building one takes longer than reading many documents."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def encode_document(version: int, document: object, omitted: Set[str] = frozenset()) -> bytes:
    """Return the bytes of a document without its fields `omitted`: one line, its version first."""
    values = adapter_of(type(document)).dump_json(document, by_alias=True, exclude=set(omitted), ensure_ascii=True)
    # Earlier releases escaped this character too.
    rest = values[1:].replace(b"\x7f", rb"\u007f")
    return b'{"%s":%d%s%s\n' % (_VERSION.encode(), version, b"," if len(rest) > 1 else b"", rest)


class JsonDocument:
    """A document of a known version.

    Both methods raise RemoteObjectCorruptError, naming `source` and the field; the constructor also LaterVersionError.
    """

    def __init__(self, raw: bytes, source: str, version: int, most_bytes: int = MAX_DOCUMENT_BYTES) -> None:
        """Take `raw`; `version` is the latest supported version."""
        self._raw = raw
        self._source = source
        if len(raw) > most_bytes:
            raise self.wrong(f"{len(raw)} bytes are more than such a document has")
        self.version = self.read(_Versioned).format_version
        if self.version > version:
            raise LaterVersionError(source, self.version, version)

    def read(self, kind: type[Document]) -> Document:
        """Return the fields of the dataclass `kind`."""
        try:
            return adapter_of(kind).validate_json(self._raw)
        except ValidationError as error:
            # The exception would show the content, which may be secret.
            raise self.wrong(first_problem(error)) from None

    def wrong(self, reason: str) -> RemoteObjectCorruptError:
        """Return the error that the document is wrong for this reason."""
        return RemoteObjectCorruptError(f"{self._source}: {reason}")


def first_problem(error: ValidationError) -> str:
    """Return which field is wrong, and why. A value is shown only if it is a number."""
    [first, *_] = error.errors(include_url=False, include_context=False)
    where, value = ".".join(map(str, first["loc"])), first["input"]
    if not where:
        return first["msg"]
    if first["type"] == "missing":
        return f"{where} is missing"
    shown = repr(value) if value is None or isinstance(value, int) else f"of type {type(value).__name__}"
    return f"{where} is {shown:.80}: {first['msg']}"
