from __future__ import annotations

import pytest

from support.read_service_site import ReadServiceSite
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

MANIFEST = "/topics/orders/partitions/0/segments/{}/indexes/manifest"


@pytest.mark.parametrize("nested", [1, 200])
def test_a_manifest_of_json_is_given(site: ReadServiceSite, monkeypatch: pytest.MonkeyPatch, nested: int) -> None:
    answer = given(site, monkeypatch, b'{"a":' + b"[" * nested + b"]" * nested + b"}")
    assert answer[0] == 200


@pytest.mark.parametrize(
    "hostile",
    [b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":' * 300 + b"1" + b"}" * 300, b'{"a":' + b"[" * 900 + b"]" * 900 + b"}",
     b"[" * 100_000, b"[]", b"\xff", b"", b'{"a":' + b"9" * 10_000 + b"}"],
)  # fmt: skip
def test_a_manifest_that_is_invalid_is_a_damaged_object(
    site: ReadServiceSite, monkeypatch: pytest.MonkeyPatch, hostile: bytes
) -> None:
    assert given(site, monkeypatch, hostile) == (502, "RemoteObjectCorrupt")


def given(site: ReadServiceSite, monkeypatch: pytest.MonkeyPatch, manifest: bytes) -> tuple[int, str | None]:
    """Return the status of what the service makes of a manifest, and the title of its problem."""
    monkeypatch.setattr(ObjectRemoteStorageManager, "fetch_index", lambda *_: manifest)
    answer = site.get(MANIFEST.format(site.segments()[0].segment_id.id))
    return answer.status_code, answer.json().get("title")
