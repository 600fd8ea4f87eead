"""The settings files of several clusters: which there are, what counts in them, and what they may not share."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import mentions, run
from tiered_storage.errors import ConfigurationError
from tiered_storage.settings.properties.cluster_files import other_clusters, read_dag_settings
from tiered_storage.settings.settings import load_cluster_settings, load_settings


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment in which the first cluster and `west` have files, with one setting of the first cluster."""
    (tmp_path / "settings.yaml").write_text("state.directory: first\n")
    (tmp_path / "settings.west.yaml").write_text("state.directory: west\n")
    environ = {"TIERED_STORAGE_CONFIG": str(tmp_path / "settings.yaml"), "TIERED_STORAGE_LEASE_DURATION_MS": "77000"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return environ


def test_other_clusters_are_files_beside_the_first_in_the_order_of_their_names(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    for name in ("settings.east-2.yaml", "settings.a__b.yaml", "settings.yaml.bak", "settings..yaml", "west.yaml"):
        (tmp_path / name).write_text("")
    assert list(other_clusters(environ)) == ["east-2", "west"]
    assert other_clusters({"TIERED_STORAGE_CONFIG": str(tmp_path / "nowhere" / "settings.yaml")}) == {}


def test_settings_in_the_environment_are_the_first_clusters(tmp_path: Path, environ: dict[str, str]) -> None:
    first, west = load_cluster_settings(None, environ=environ), load_cluster_settings("west", environ=environ)
    assert (first.state_directory, west.state_directory) == (tmp_path / "first", tmp_path / "west")
    assert first.lease_duration_ms == 77_000 != west.lease_duration_ms
    by_path = load_settings(tmp_path / "settings.west.yaml", environ=environ)
    assert by_path.lease_duration_ms == west.lease_duration_ms


def test_a_cluster_without_a_file_is_an_error_that_names_it(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError) as error:
        load_cluster_settings("north", environ=environ)
    assert str(tmp_path / "settings.north.yaml") in str(error.value)
    assert "west" in str(error.value)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("state.directory", "first"),
        ("rlmm.config.url", "sqlite:///{root}/first/remote_log_metadata.db"),
        ("rsm.config.url", "{root}/first/remote"),
    ],
)
def test_two_clusters_in_one_place_are_refused(
    tmp_path: Path, environ: dict[str, str], setting: str, value: str
) -> None:
    text = {"state.directory": "west", setting: value.format(root=tmp_path)}
    (tmp_path / "settings.west.yaml").write_text("".join(f"{name}: {given}\n" for name, given in text.items()))
    with pytest.raises(ConfigurationError, match=rf"settings\.west\.yaml: {setting}"):
        load_cluster_settings("west", environ=environ)
    assert load_cluster_settings(None, environ=environ).state_directory == tmp_path / "first"


def test_a_cluster_with_wrong_settings_does_not_stop_the_others(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "settings.broken.yaml").write_text("[")
    assert load_cluster_settings("west", environ=environ).state_directory == tmp_path / "west"
    with pytest.raises(ConfigurationError, match="not YAML"):
        load_cluster_settings("broken", environ=environ)


def test_a_cluster_has_pools_of_its_own_where_its_file_asks_for_them(tmp_path: Path) -> None:
    file = tmp_path / "settings.west.yaml"
    for text, expected in (("true", True), ("yes", True), ("On", True), ("1", True), ("false", False), ("off", False)):
        file.write_text(f"own.pools: {text}\nstate.directory: west\n")
        found = read_dag_settings(file, {})
        assert (found.has_own_pools, found.problems) == (expected, ())
        assert load_settings(file, environ={}).own_pools is expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("own.pools: maybe\n", "{}: own.pools is 'maybe': it must be true or false"),
        ("own.pools:\n", "{}: own.pools is '': it must be true or false"),
        ("own.pools: [true]\n", "{}: own.pools is \"['true']\": it must be true or false"),
        ("[", "{}: is not YAML"),
        ("- own.pools\n", "{}: is not a mapping"),
        ("copy.queues: 'no queue'\n", "{}: copy.queues is not a list"),
        ("copy.queues: {a: b}\n", "{}: copy.queues is not a list"),
    ],
)
def test_what_is_wrong_with_a_clusters_dags_is_named_and_stops_no_other_cluster(
    tmp_path: Path, text: str, problem: str
) -> None:
    file = tmp_path / "settings.west.yaml"
    file.write_text(text)
    found = read_dag_settings(file, {})
    assert (found.has_own_pools, found.copy_queues) == (False, ())
    [named] = found.problems
    assert named.startswith(problem.format(file))
    with pytest.raises(ConfigurationError):
        load_settings(file, environ={})


def test_a_settings_file_need_not_exist_and_may_be_empty(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    assert read_dag_settings(file, {}).problems == ()
    file.write_text("")
    assert read_dag_settings(file, {}).problems == ()


def test_a_cluster_copies_in_the_queues_that_its_file_or_the_environment_names(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    for text, expected in (
        ("copy.queues: broker-1, broker-2, broker-1\n", ("broker-1", "broker-2")),
        ("copy.queues: [a.b, c_d]\n", ("a.b", "c_d")),
        ("copy.queues: 'no queue'\n", ()),
        ("copy.queues: {a: b}\n", ()),
        ("", ()),
        ("[", ()),
    ):
        file.write_text(text)
        assert read_dag_settings(file, {}).copy_queues == expected
    assert read_dag_settings(file, {"TIERED_STORAGE_COPY_QUEUES": "c, d"}).copy_queues == ("c", "d")
    file.write_text("copy.queues: broker-1, broker-2\n")
    assert load_settings(file, environ={}).copy_queues == read_dag_settings(file, {}).copy_queues


@pytest.mark.usefixtures("environ")
def test_commands_take_the_name_of_a_cluster() -> None:
    shown = run("topics", "list", "--cluster", "north")
    assert shown.exit_code == 1
    assert mentions(shown.err, "cluster 'north'")
    found = run("doctor", "--cluster", "west", "--json")
    assert "settings.west.yaml" in found.out
