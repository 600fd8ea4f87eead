"""The documentation: its links lead somewhere, and the commands that it names exist."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from tiered_storage import errors
from tiered_storage.cli import main as cli
from tiered_storage.errors import AppendRefusedError, TieredStorageError
from tiered_storage.kafka_log.columnar.record_columns import SCHEMA
from tiered_storage.kafka_log.dump.file_kind import FileKind, recognize
from tiered_storage.remote_log.audit.report import AnomalyKind
from tiered_storage.remote_log.storage.index_bundle import build_bundle
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.settings.settings import Settings, load_settings
from tiered_storage.settings.topics import TopicSettings

PROJECT = Path(__file__).parents[2]
DOCUMENTS = sorted([*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")])
OPERATIONS = (PROJECT / "docs" / "operations.md").read_text("utf-8")
PICTURES = sorted((PROJECT / "docs" / "pictures").iterdir())
MOST_BYTES_OF_A_PICTURE = 200_000

LINK = re.compile(r"!?\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ +(?P<title>.+)$", re.MULTILINE)
MAKE = re.compile(r"(?:`|^\s*)make (?P<target>[a-z-]+)", re.MULTILINE)
TIERED_STORAGE = re.compile(r"(?:`|^\s*\$ |bin/)tiered-storage (?P<words>[a-z-]+(?: [a-z-]+)?)", re.MULTILINE)
FORBIDDEN = (
    re.compile(r"\.\./shared"),
    re.compile(r"(?<![\w.])/(work|home|root|tmp|Users)/"),
    re.compile(r"\bTODO\b|\bFIXME\b"),
    re.compile(r"\b(AI|LLM|chatbot|assistant)\b"),
)

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def anchors(document: Path) -> set[str]:
    """The anchors that a page of headings has where it is shown."""
    titles = [found["title"].lower() for found in HEADING.finditer(document.read_text())]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


@every_document
def test_links_lead_to_files_and_headings_that_exist(document: Path) -> None:
    for link in LINK.finditer(document.read_text()):
        if link["target"].startswith("https://"):
            continue
        path, _, anchor = unquote(link["target"]).partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.is_relative_to(PROJECT), link[0]
        assert target.exists(), link[0]
        assert not anchor or anchor in anchors(target), link[0]


@every_document
def test_pictures_say_in_words_what_they_show(document: Path) -> None:
    for link in LINK.finditer(document.read_text()):
        if link[0].startswith("!"):
            assert len(link["text"].split()) > 5, link[0]


@every_document
def test_make_targets_exist(document: Path) -> None:
    makefile = (PROJECT / "Makefile").read_text()
    for found in MAKE.finditer(document.read_text()):
        assert re.search(rf"^{found['target']}:", makefile, re.MULTILINE), found[0]


def commands() -> dict[str, set[str]]:
    """The commands of tiered-storage, each with those that it has in turn."""
    group = get_command(cli.app)
    assert isinstance(group, TyperGroup)
    loaded = {name: getattr(command, "loaded", command) for name, command in group.commands.items()}
    return {name: set(getattr(command, "commands", ())) for name, command in loaded.items()}


@every_document
def test_commands_of_tiered_storage_exist(document: Path) -> None:
    known = commands()
    for found in TIERED_STORAGE.finditer(document.read_text()):
        name, _, inner = found["words"].partition(" ")
        assert name in known, found[0]
        assert not known[name] or not inner or inner in known[name], found[0]


def test_each_command_has_its_place_in_the_documentation() -> None:
    text = (PROJECT / "docs" / "command-line.md").read_text()
    for name, inner in commands().items():
        assert re.search(rf"^## {name}\b", text, re.MULTILINE), name
        assert all(f"tiered-storage {name} {each}" in text for each in inner), name


def messages() -> str:
    """All texts of the library and of the operators, with … for what a message takes in."""
    texts: list[str] = []
    for folder in ("include", "plugins"):
        for module in (PROJECT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(module.read_text("utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                    texts.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
    return "\n".join(texts)


def test_messages_that_are_explained_exist() -> None:
    """Between two … stands a part of one message, as the code has it."""
    known = messages()
    pages = "\n\n".join(page.read_text("utf-8") for page in DOCUMENTS)
    tables = re.findall(r"^\| Message .*?(?:\n\n|\Z)", pages, re.MULTILINE | re.DOTALL)
    rows = [row for table in tables for row in table.splitlines()[2:] if row.startswith("|")]
    assert len(rows) > 30
    for row in rows:
        for part in row.split("|")[1].split("…"):
            assert part.strip(" ,;:()") in known, f"{row.split('|')[1]}: nothing says {part}"


def test_every_error_and_every_anomaly_is_explained() -> None:
    of_local_logs = {AppendRefusedError, *AppendRefusedError.__subclasses__(), TieredStorageError}
    for name, error in vars(errors).items():
        if isinstance(error, type) and issubclass(error, TieredStorageError) and error not in of_local_logs:
            assert re.search(rf"^\| [^|]*`{name}`[^|]*\|", OPERATIONS, re.MULTILINE), name
            assert (f"`{name}` (R)" in OPERATIONS) == error.retriable, name
    for kind in AnomalyKind:
        assert f"\n| {kind.value} |" in OPERATIONS, kind


def test_settings_that_are_named_exist() -> None:
    known = {*Settings.known_names(), *TopicSettings.known_names()}
    # A class of one's own has options that only it knows.
    of_own_classes = re.compile(r"^```yaml\n[a-z.]+\.manager\.class\.name:.*?^```", re.MULTILINE | re.DOTALL)
    prefix = r"(?:rsm|rlmm)\.config\.|remote\.log\.|log\.|copy\.|commit\.|lease\.|work\.|state\."
    for document in DOCUMENTS:
        if document.name != "configuration.md":
            text = of_own_classes.sub("", document.read_text())
            for found in re.finditer(rf"(?:`|^\s*)(?P<name>(?:{prefix})[a-z.]+)[`:]", text, re.MULTILINE):
                assert found["name"].rstrip(".") in known, f"{document.name}: {found['name']}"


OTHER_YAML = ("roles:", "rule_files:")
"""How blocks of YAML begin that are no settings: the read service's rights, and the configuration of Prometheus."""


def settings_in(document: Path) -> list[str]:
    """Return the settings files that a page shows; a block that sets a name twice shows one a line."""
    blocks = re.findall(r"^( *)```yaml\n(.*?)^ *```$", document.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    found: list[str] = []
    for indent, block in blocks:
        lines = [line.removeprefix(indent) for line in block.splitlines()]
        names = [line.partition(":")[0] for line in lines if re.match(r"[a-z]", line)]
        found += lines if len(set(names)) < len(names) else ["\n".join(lines)]
    return [text for text in found if not text.startswith(OTHER_YAML)]


@pytest.mark.parametrize("document", [page for page in DOCUMENTS if settings_in(page)], ids=lambda page: page.name)
def test_the_settings_that_a_page_shows_are_valid(document: Path, tmp_path: Path) -> None:
    for number, text in enumerate(settings_in(document)):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text, "utf-8")
        load_settings(file, environ={})


def test_each_kind_of_store_has_settings_on_its_page() -> None:
    shown = "\n".join(settings_in(PROJECT / "docs" / "stores.md"))
    urls = re.findall(r"^rsm\.config\.url: (\w+)://", shown, re.MULTILINE)
    assert urls == ["s3", "az", "s3", "hdfs", "hdfs", "sqlite"]


@every_document
def test_documents_have_no_internal_words_or_paths(document: Path) -> None:
    for forbidden in FORBIDDEN:
        assert not forbidden.search(document.read_text()), forbidden.pattern


def test_every_picture_is_shown_and_small() -> None:
    shown = {link["target"].rpartition("/")[2] for page in DOCUMENTS for link in LINK.finditer(page.read_text())}
    for picture in PICTURES:
        assert picture.name in shown
        assert picture.stat().st_size < MOST_BYTES_OF_A_PICTURE


def test_the_script_for_bundles_splits_one(tmp_path: Path) -> None:
    [script] = re.findall(
        r"^```python\n(.*?)^```", (PROJECT / "docs" / "on-the-store.md").read_text(), re.DOTALL | re.MULTILINE
    )
    contents = {kind: kind.name.encode() for kind in IndexKind}
    bundle = tmp_path / "00000000000000000000-cxfmXdFdRF2-6WITmvYjdA.indexes"
    bundle.write_bytes(build_bundle(contents))
    subprocess.run([sys.executable, "-c", script, str(bundle)], check=True)
    pieces = sorted(path.read_bytes() for path in tmp_path.iterdir() if path != bundle)
    assert pieces == sorted(contents.values())


def test_the_examples_for_kafkas_log_print_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (PROJECT / "docs" / "kafka-log.md").read_text()
    scripts = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    [console] = re.findall(r"^```\n(\$ \.venv/bin/python .*?)^```", text, re.DOTALL | re.MULTILINE)
    commands = re.findall(r"^\$ \.venv/bin/python (\S+) (\S+)$", console, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    for script, (name, argument) in zip(scripts, commands, strict=True):
        Path(name).write_text(script)
        monkeypatch.setattr(sys, "argv", [name, argument])
        runpy.run_path(name)
    printed = [line for line in console.splitlines() if not line.startswith("$ ")]
    assert capsys.readouterr().out.splitlines() == printed
    assert [path.name for path in tmp_path.rglob("*.txnindex")] == re.findall(r"`(\d{20}\.txnindex)`", text)


def test_the_files_of_kafkas_log_are_those_that_are_known_by_their_names() -> None:
    text = (PROJECT / "docs" / "kafka-log.md").read_text()
    listings = re.findall(r"^## A (?:log|partition's) directory\n\n```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    named = [re.split(r"  +", line)[0] for listing in listings for line in listing.splitlines()]
    files = [re.sub(r"\{.*\}", "0" * 20, name) for name in named if not name.endswith("/")]
    assert [name for name in files if recognize(Path(name)) is None] == [".lock"]
    assert {file.kind for name in files if (file := recognize(Path(name)))} == set(FileKind)
    for suffix in re.findall(r"^\| `…(\.[a-z]+)` \|", text, re.MULTILINE):
        is_file_of_a_log = suffix != ".tmp"
        assert bool(recognize(Path(f"{0:020d}.log{suffix}"))) == is_file_of_a_log, suffix


def test_the_columns_of_kafkas_log_are_those_that_are_made() -> None:
    _, _, table = (PROJECT / "docs" / "kafka-log.md").read_text().partition("| Column | Type |")
    rows = [row.split("|")[1] for row in table.partition("\n\n")[0].splitlines() if row.startswith("| `")]
    assert re.findall(r"`([a-z_]+)`", "".join(rows)) == SCHEMA.names
