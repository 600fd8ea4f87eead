"""Which package may import which: each only those that stand above it in STOREYS, so that there is no cycle."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
ROOTS = (PROJECT / "include", PROJECT / "plugins")
LIBRARY, LOG, REMOTE, AIRFLOW = (
    "tiered_storage",
    "tiered_storage.kafka_log",
    "tiered_storage.remote_log",
    "tiered_storage_airflow",
)

STOREYS = (
    *(
        f"{LIBRARY}.{name}"
        for name in ("errors", "clock", "disk_space", "private_files", "redaction", "regular_files", "own_classes")
    ),
    *(f"{LIBRARY}.{name}" for name in ("settings.properties", "settings")),
    *(
        f"{LOG}.{name}"
        for name in ("kernels", "files", "records", "indexes", "producers", "columnar", "log.recovery", "log", "dump")
    ),
    *(f"{LIBRARY}.{name}" for name in ("kafka_wire.connections", "kafka_wire", "kafka_wire.server")),
    *(f"{REMOTE}.{name}" for name in ("model", "selection", "progress", "source", "lineage", "coverage")),
    *(f"{REMOTE}.{name}" for name in ("storage.transforms", "storage.clients", "storage.documents", "storage")),
    *(
        f"{REMOTE}.{name}"
        for name in ("metadata", "metadata.sql.database", "metadata.sql", "metadata.topic.cluster", "metadata.topic")
    ),
    *(f"{REMOTE}.{name}" for name in ("tiering_policy", "indexes", "native", "jobs", "context")),
    *(f"{REMOTE}.{name}" for name in ("enabling", "copy", "read.chunks", "read")),
    *(f"{REMOTE}.{name}" for name in ("retention.permission", "retention.local", "retention")),
    f"{REMOTE}.metrics",
    *(f"{REMOTE}.{name}" for name in ("audit", "repair", "rebuild", "restore", "tables")),
    *(f"{REMOTE}.{name}" for name in ("manager", "follower", "service", "adopt")),
    *(f"{LIBRARY}.process", f"{LIBRARY}.gateway.limits", f"{LIBRARY}.gateway.operation"),
    *(f"{LIBRARY}.gateway.connections", f"{LIBRARY}.gateway.deletions", f"{LIBRARY}.gateway"),
    f"{LIBRARY}.gateway.standalone",
    *(f"{LIBRARY}.doctor", f"{LIBRARY}.cli.common", f"{LIBRARY}.cli"),
    *(
        f"{AIRFLOW}.{name}"
        for name in ("provider", "rendering", "links", "clusters", "forms", "hooks", "runs", "spark_tables")
    ),
    *(f"{AIRFLOW}.{name}" for name in ("operators", "read_service", "read_service.routes", "page")),
    *(f"{AIRFLOW}.{name}" for name in ("metrics_endpoint", "web_app", "plugin", "embedded", "demo", "demo_cluster")),
    "tiered_storage_plugin",
)
"""Packages, the lowest first. A module at the top of `remote_log`, of the library or of the plugin is one of its own:
`manager` knows all of remote_log, and all of remote_log knows `model`."""
OPEN_TOPS = (LIBRARY, REMOTE, AIRFLOW)
MOST_MODULES = 12
"""About a dozen."""
MOST_AT_A_TOP = 8
SENTENCES = 3
IMPORTERS = ("import_module", "__import__")
"""Functions that import what they are given."""


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the product by its dotted name; a package by its own."""
    found = {}
    for root in ROOTS:
        for path in root.rglob("*.py"):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            found[name] = ast.parse(path.read_text("utf-8"))
    return found


@cache
def packages() -> frozenset[str]:
    """Every package of the product by its dotted name."""
    return frozenset(name for name in modules() if any(other.startswith(f"{name}.") for other in modules()))


def storey(module: str) -> str:
    """The innermost package, or the module at an open top, that `module` is counted with."""
    while module not in packages() and "." in module and module.rpartition(".")[0] not in OPEN_TOPS:
        module = module.rpartition(".")[0]
    return module


def imported(tree: ast.Module, known: Collection[str], package: str = "") -> Iterator[str]:
    """Yield the modules that `tree`, in `package`, imports, wherever in it, also only for types."""
    for source, name in imports(tree, package):
        whole = f"{source}.{name}" if name else source
        yield whole if not name or whole in known else source


def imports(tree: ast.Module, package: str = "") -> Iterator[tuple[str, str]]:
    """Yield each imported module, and the name that is taken out of it: "" if the module itself is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((_source(node, package), each.name) for each in node.names)
        elif isinstance(node, ast.Import):
            yield from ((each.name, "") for each in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in IMPORTERS:
            yield from ((str(each.value), "") for each in node.args[:1] if isinstance(each, ast.Constant))


def _source(node: ast.ImportFrom, package: str) -> str:
    """The module that `node` imports from; one dot stands for `package`, each further one for the one above."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


def _package_of(module: str) -> str:
    return module if module in packages() else module.rpartition(".")[0]


@cache
def arrows() -> tuple[tuple[str, str], ...]:
    """Which module imports which other one of another storey."""
    known = set(modules())
    return tuple(
        (module, other)
        for module, tree in modules().items()
        for other in imported(tree, known, _package_of(module))
        if other in known and other not in OPEN_TOPS and storey(module) != storey(other)
    )


def wiring() -> Iterator[tuple[str, str]]:
    """Which DAG or Spark job imports which module."""
    for folder in ("dags", "spark_jobs"):
        for path in (PROJECT / folder).glob("*.py"):
            found = imported(ast.parse(path.read_text("utf-8")), set(modules()))
            yield from ((path.name, other) for other in found if other in modules())


def public(room: str) -> frozenset[str]:
    """The modules that `room` lets others import, by their dotted names: its `__all__` has them."""
    assigned = (node for node in modules()[room].body if isinstance(node, ast.Assign))
    lists = (ast.literal_eval(node.value) for node in assigned if ast.unparse(node.targets[0]) == "__all__")
    return frozenset(f"{room}.{name}" for name in next(lists, ()))


def _room(path: Path) -> str:
    """The dotted name of the folder that a module lies in."""
    root = next(root for root in ROOTS if path.is_relative_to(root))
    return ".".join(path.parent.relative_to(root).parts)


ROOMS = tuple(sorted(packages() - {*OPEN_TOPS, LOG}))
"""The packages that modules stand in; those at an open top are storeys of their own."""


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from tiered_storage.remote_log import model", f"{REMOTE}.model"),
        ("from tiered_storage.remote_log.model import Finding", f"{REMOTE}.model"),
        ("import tiered_storage.remote_log.model", f"{REMOTE}.model"),
        ("from . import plan", f"{REMOTE}.copy.plan"),
        ("from .plan import CopyPlan", f"{REMOTE}.copy.plan"),
        ("from .. import model", f"{REMOTE}.model"),
        ("from ..model import Finding", f"{REMOTE}.model"),
        ("def f():\n    from ..model import Finding", f"{REMOTE}.model"),
        ("importlib.import_module('tiered_storage.remote_log.model')", f"{REMOTE}.model"),
        ("import_module('tiered_storage.remote_log.model')", f"{REMOTE}.model"),
        ("__import__('tiered_storage.remote_log.model')", f"{REMOTE}.model"),
        ("import tiered_storage.remote_log", REMOTE),
    ],
)
def test_every_way_to_import_a_module_is_seen(code: str, found: str) -> None:
    assert list(imported(ast.parse(code), set(modules()), f"{REMOTE}.copy")) == [found]


def test_nobody_imports_a_whole_top() -> None:
    """Every module below can be reached through it, which no arrow shows."""
    users = [
        f"{module} imports {source} {name}"
        for module, tree in modules().items()
        for source, name in imports(tree, _package_of(module))
        if (f"{source}.{name}" if name else source) in {*OPEN_TOPS, LOG}
    ]

    assert users == []


def test_each_package_says_in_three_sentences_what_lives_there() -> None:
    counts = {
        name: len(re.findall(r"[.!?](?=\s|$)", ast.get_docstring(modules()[name]) or "")) for name in sorted(packages())
    }

    assert {name: count for name, count in counts.items() if count != SENTENCES} == {}


def test_each_package_lists_what_others_may_import_and_a_top_all_that_stands_there() -> None:
    children = {name: {other for other in modules() if other.rpartition(".")[0] == name} for name in packages()}

    assert [name for name in sorted(packages()) if not _has_a_list(modules()[name])] == []
    assert {name: public(name) - children[name] for name in packages() if not public(name) <= children[name]} == {}
    assert {name: children[name] - public(name) for name in {*OPEN_TOPS, LOG} if children[name] - public(name)} == {}


def _has_a_list(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__" for node in tree.body)


def test_the_folders_of_unit_tests_are_the_packages() -> None:
    """A Spark job is no package: it is one file."""
    tests = PROJECT / "tests" / "unit"
    folders = {".".join(path.parent.relative_to(tests).parts) for path in tests.rglob("test_*.py")}
    mirrored = {name for folder in folders - {""} for name in _with_parents(folder)}

    assert mirrored - {"spark_jobs"} == packages()


def _with_parents(room: str) -> Iterator[str]:
    parts = room.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def test_each_package_imports_only_from_storeys_below_it() -> None:
    rank = {name: number for number, name in enumerate(STOREYS)}

    upwards = [
        f"{module} imports {other}"
        for module, other in arrows()
        if rank.get(storey(other), len(rank)) >= rank.get(storey(module), -1)
    ]

    assert upwards == []


def test_every_package_has_its_storey() -> None:
    ends = {storey(end) for pair in arrows() for end in pair} - {LIBRARY, REMOTE, AIRFLOW, LOG}

    assert ends - set(STOREYS) == set()
    assert all(one != other for one, other in pairwise(STOREYS))


def test_from_another_room_only_public_modules_are_imported() -> None:
    private = [
        f"{module} imports {other}, which is not in __all__ of {storey(other)}"
        for module, other in (*arrows(), *wiring())
        if storey(other) in ROOMS and other not in public(storey(other))
    ]

    assert private == []


def test_public_modules_are_those_that_somebody_else_needs() -> None:
    texts = [path.read_text("utf-8") for path in (PROJECT / "pyproject.toml", *(PROJECT / "docs").glob("*.md"))]
    needed = {other for _, other in (*arrows(), *wiring())}

    unused = {name for room in ROOMS for name in public(room) - needed if not any(name in text for text in texts)}

    assert unused == set()


def test_the_library_knows_neither_airflow_nor_spark_nor_a_web_framework() -> None:
    foreign = ("airflow", "pyspark", "fastapi", "starlette", AIRFLOW)

    found = [
        f"{module} imports {name}"
        for module, tree in modules().items()
        if module.split(".")[0] == LIBRARY
        for name in imported(tree, set())
        if name.split(".")[0] in foreign
    ]

    assert found == []


def test_a_job_of_spark_imports_nothing_but_the_library() -> None:
    for job in (PROJECT / "spark_jobs").glob("*.py"):
        names = imported(ast.parse(job.read_text("utf-8")), set())
        assert not [name for name in names if name.split(".")[0] == AIRFLOW], job.name


def test_only_a_source_opens_files_of_local_segments() -> None:
    """A restore and a follower write such files into directories of their own; a key ring is files of keys."""
    allowed = {f"{REMOTE}.{room}" for room in ("source", "restore", "follower", "storage.transforms")}
    of_files = {"iterate_segment", "read_producer_snapshot", "open_regular", "open_unbuffered"}

    openers = {
        f"{module} imports {name}"
        for module, tree in modules().items()
        if module.startswith(f"{REMOTE}.") and storey(module) not in allowed
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for name in [node.module, *(each.name for each in node.names)]
        if name in of_files or name == f"{LOG}.files.log_segment"
    }

    assert openers == set()


def test_no_path_leaves_a_source() -> None:
    """Its border speaks of locations, which only a source opens."""
    border = (f"{REMOTE}.source.segment_source", f"{REMOTE}.source.partition_log")

    assert not [module for module in border if "pathlib" in imported(modules()[module], set())]


def test_only_the_border_of_stores_asks_what_kind_a_storage_is() -> None:
    """All others ask as_listable or listing_storage: a user's own class may be of any kind."""
    storages = {"ListableStorage", "ObjectRemoteStorageManager", "DelegatingStorage"}
    clients = {"LocalDirectory", "ObjectStore", "Hdfs"}
    metadata = {"GenerationGuard", "GuardedTopics", "GuardedSafety"}
    stores = {"SqlMetadataStore", "TopicMetadataStore", "NativeMetadataStore", "NativeRemoteStorage"}
    kinds = {*storages, *clients, *metadata, *stores, *_classes_below(f"{REMOTE}.metadata.sql")}

    askers = {module for module, tree in modules().items() if kinds & _asked_for(tree)}

    own = {f"{REMOTE}.metadata.topic.store", f"{REMOTE}.native.read_only_storage"}
    assert askers == {f"{REMOTE}.storage.listable_storage", *own}


def _classes_below(room: str) -> set[str]:
    return {
        node.name
        for module, tree in modules().items()
        if module.startswith(f"{room}.")
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def _asked_for(tree: ast.Module) -> set[str]:
    """The classes that `tree` asks of a value: by isinstance, issubclass or a pattern of a match."""
    asked = [node.cls for node in ast.walk(tree) if isinstance(node, ast.MatchClass)]
    asked += [
        node.args[1]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"isinstance", "issubclass"}
    ]
    names = {
        ast.unparse(each) for node in asked for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute)
    }
    return {name.rpartition(".")[2] for name in names}


def test_only_sources_take_their_logs_from_log_dirs() -> None:
    """Others ask the source: it may have no directory. Places on this machine are compared with log.dirs."""
    places = {f"{LIBRARY}.doctor", f"{REMOTE}.source", f"{REMOTE}.context", f"{REMOTE}.rebuild"}

    users = {
        module
        for module, tree in modules().items()
        if storey(module) not in places
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "log_dirs"
    }

    assert users == set()


def test_a_class_of_the_log_has_its_name_alone() -> None:
    names = Counter(
        node.name
        for module, tree in modules().items()
        if module.startswith((f"{LOG}.", f"{REMOTE}."))
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )

    assert [name for name, count in names.items() if count > 1] == []


def test_a_room_has_about_a_dozen_modules_and_a_top_fewer() -> None:
    files = (path for root in ROOTS for path in root.rglob("*.py") if path.name != "__init__.py")
    counts = Counter(_room(path) for path in files)

    bigger = {
        room: count for room, count in counts.items() if count > (MOST_AT_A_TOP if room in OPEN_TOPS else MOST_MODULES)
    }

    assert bigger == {}


def test_only_unit_tests_import_from_unit_tests() -> None:
    """Neither by an import nor by a patch: other kinds of tests share what is in `support`."""
    tests = PROJECT / "tests"
    others = [path for path in tests.rglob("*.py") if path.relative_to(tests).parts[0] != "unit"]
    users = [
        str(path.relative_to(tests))
        for path in others
        for line in path.read_text("utf-8").splitlines()
        if re.match(r"\s*(from|import) unit[. ]|.*[\"']unit\.tiered_storage", line)
    ]

    assert users == []
