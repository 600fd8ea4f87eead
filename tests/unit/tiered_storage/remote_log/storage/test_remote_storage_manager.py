"""From class names to stores."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from support.remote_segments import segment_data, segment_metadata
from tiered_storage.errors import ConfigurationError, RemoteStorageError
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.remote_storage_manager import load_remote_storage_manager
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.settings.own_managers import STORAGE_MANAGER

OPTIONS = ObjectStoreOptions(region="us-east-1", configs={"chunk.size": "5"})

OWN_MANAGER = """
from tiered_storage.errors import RemoteStorageError
from tiered_storage.remote_log.storage.listable_storage import ListableStorage
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager

class Half:
    def fetch_index(self, metadata, kind): ...

class Whole(Half):
    @classmethod
    def open(cls, url, options):
        opened = cls()
        opened.url, opened.region, opened.configs = url, options.region, options.configs
        return opened

    def copy_log_segment_data(self, metadata, data): ...
    def fetch_log_segment(self, metadata, start_position=0, end_position=None): ...
    def delete_log_segment_data(self, metadata): ...
    def close(self): ...

class Declared(RemoteStorageManager):
    open = Whole.open
    def close(self): ...

class Abstract(Whole, ListableStorage):
    pass

class Demanding(Whole):
    @classmethod
    def open(cls, url, options):
        return options.configs["no such option"]

class Empty(Whole):
    @classmethod
    def open(cls, url, options):
        return None

class Away(Whole):
    @classmethod
    def open(cls, url, options):
        raise RemoteStorageError("the server is away")

def function(url, options): ...
"""


@pytest.fixture(autouse=True)
def own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of a user, with managers of all kinds, and modules that fail."""
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("")
    (tmp_path / "own_package" / "storage.py").write_text(OWN_MANAGER)
    (tmp_path / "own_package" / "broken.py").write_text("import a_package_that_nobody_has\n")
    (tmp_path / "own_package" / "invalid.py").write_text("class Whole\n")
    for name in [each for each in sys.modules if each.partition(".")[0] == "own_package"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)


def test_the_default_manager_is_loaded_by_its_name(tmp_path: Path) -> None:
    manager = load_remote_storage_manager(STORAGE_MANAGER.our_class, f"file://{tmp_path}/store", OPTIONS)
    assert isinstance(manager, ObjectRemoteStorageManager)
    metadata = segment_metadata(3)
    manager.copy_log_segment_data(metadata, segment_data(b"abc"))
    assert b"".join(manager.fetch_log_segment(metadata)) == b"abc"
    manager.close()


def test_a_users_own_manager_is_given_url_and_options() -> None:
    manager = load_remote_storage_manager("own_package.storage.Whole", "own://somewhere", OPTIONS)
    assert vars(manager) == {"url": "own://somewhere", "region": "us-east-1", "configs": {"chunk.size": "5"}}


@pytest.mark.parametrize(
    ("class_name", "reason"),
    [
        ("Whole", "give package.module.Class"),
        ("", "give package.module.Class"),
        ("own_package.nowhere.Whole", "cannot be imported"),
        ("own_package.broken.Whole", "a_package_that_nobody_has"),
        ("own_package.invalid.Whole", "SyntaxError"),
        ("own_package..Whole", "cannot be imported"),
        (".Whole", "give package.module.Class"),
        ("own_package.storage.Missing", "has no class Missing"),
        ("own_package.storage.function", "has no class function"),
        (
            "own_package.storage.Half",
            "it lacks open, copy_log_segment_data, fetch_log_segment, delete_log_segment_data, close",
        ),
        ("own_package.storage.Declared", "it lacks copy_log_segment_data, .*delete_log_segment_data:"),
        ("own_package.storage.Abstract", "it lacks delete_objects, .*why_no_name"),
        ("own_package.storage.Demanding", "KeyError: 'no such option'"),
        ("own_package.storage.Empty", "its open returns lacks copy_log_segment_data"),
    ],
)
def test_classes_that_cannot_be_used_are_refused(class_name: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"remote\.log\.storage\.manager\.class\.name .*{reason}"):
        load_remote_storage_manager(class_name, "own://somewhere", OPTIONS)


def test_errors_of_an_own_class_pass_through() -> None:
    with pytest.raises(RemoteStorageError, match="the server is away"):
        load_remote_storage_manager("own_package.storage.Away", "own://somewhere", OPTIONS)


@pytest.mark.parametrize("kind", ["folder", "own-1.0-py3-none-any.whl"])
def test_a_class_path_is_searched_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    place, package = tmp_path / kind, f"own_{kind[:3]}"
    if kind == "folder":
        (place / package).mkdir(parents=True)
        (place / package / "__init__.py").write_text(OWN_MANAGER)
        (place / "own_package.py").write_text("raise SystemExit")
    else:
        with zipfile.ZipFile(place, "w") as wheel:
            wheel.writestr(f"{package}/__init__.py", OWN_MANAGER)
    monkeypatch.setattr(sys, "path", [*sys.path])

    for _ in range(2):
        manager = load_remote_storage_manager(f"{package}.Whole", "own://x", OPTIONS, (place,))

    assert type(manager).__module__ == package
    assert sys.path.count(str(place)) == 1
    load_remote_storage_manager("own_package.storage.Whole", "own://x", OPTIONS, (place,))


def test_a_class_path_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.whl").write_text("no archive")
    for name, reason in (("missing", "not on"), ("text.whl", "neither a folder nor a wheel")):
        with pytest.raises(ConfigurationError, match=rf"class\.path names {tmp_path / name}, which .*{reason}"):
            load_remote_storage_manager("own_package.storage.Whole", "own://x", OPTIONS, (tmp_path / name,))
