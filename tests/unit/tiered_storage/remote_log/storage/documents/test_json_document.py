"""Documents are written as all releases write them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.remote_log.storage.documents.json_document import encode_document


@dataclass(frozen=True)
class Sample:
    text: str
    number: int | None
    texts: list[str]


@dataclass(frozen=True)
class Empty:
    pass


@given(st.builds(Sample))
def test_a_document_is_one_line_of_ascii_with_its_version_first(sample: Sample) -> None:
    expected = json.dumps({"format_version": 7, **asdict(sample)}, separators=(",", ":")) + "\n"
    assert encode_document(7, sample) == expected.encode("ascii")


def test_a_document_without_fields_has_its_version() -> None:
    assert encode_document(7, Empty()) == b'{"format_version":7}\n'
