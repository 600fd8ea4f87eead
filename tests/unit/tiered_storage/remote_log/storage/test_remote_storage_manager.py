"""From class names to stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.remote_segments import segment_data, segment_metadata
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.remote_storage_manager import (
    DEFAULT_REMOTE_STORAGE_MANAGER,
    load_remote_storage_manager,
)
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

OPTIONS = ObjectStoreOptions(region="us-east-1")

OWN_MANAGER = """
class Whole:
    @classmethod
    def open(cls, url, options):
        opened = cls()
        opened.url, opened.region = url, options.region
        return opened

    def copy_log_segment_data(self, metadata, data): ...
    def fetch_log_segment(self, metadata, start_position=0, end_position=None): ...
    def fetch_index(self, metadata, kind): ...
    def delete_log_segment_data(self, metadata): ...
    def close(self): ...

class Half:
    def fetch_index(self, metadata, kind): ...

def function(url, options): ...
"""


@pytest.fixture(autouse=True)
def own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of a user, with a manager that has all methods, one that lacks some, and a module that fails."""
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("")
    (tmp_path / "own_package" / "storage.py").write_text(OWN_MANAGER)
    (tmp_path / "own_package" / "broken.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_the_default_manager_is_loaded_by_its_name(tmp_path: Path) -> None:
    manager = load_remote_storage_manager(DEFAULT_REMOTE_STORAGE_MANAGER, f"file://{tmp_path}/store", OPTIONS)
    assert isinstance(manager, ObjectRemoteStorageManager)
    metadata = segment_metadata(3)
    manager.copy_log_segment_data(metadata, segment_data(b"abc"))
    assert b"".join(manager.fetch_log_segment(metadata)) == b"abc"
    manager.close()


def test_a_users_own_manager_is_given_url_and_options() -> None:
    manager = load_remote_storage_manager("own_package.storage.Whole", "own://somewhere", OPTIONS)
    assert vars(manager) == {"url": "own://somewhere", "region": "us-east-1"}


@pytest.mark.parametrize(
    ("class_name", "reason"),
    [
        ("Whole", "give package.module.Class"),
        ("", "give package.module.Class"),
        ("own_package.nowhere.Whole", "cannot be imported"),
        ("own_package.broken.Whole", "a_package_that_nobody_has"),
        ("own_package..Whole", "cannot be imported"),
        (".Whole", "give package.module.Class"),
        ("own_package.storage.Missing", "has no class Missing"),
        ("own_package.storage.function", "has no class function"),
        (
            "own_package.storage.Half",
            "it lacks open, copy_log_segment_data, fetch_log_segment, delete_log_segment_data",
        ),
    ],
)
def test_classes_that_cannot_be_used_are_refused(class_name: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        load_remote_storage_manager(class_name, "own://somewhere", OPTIONS)
