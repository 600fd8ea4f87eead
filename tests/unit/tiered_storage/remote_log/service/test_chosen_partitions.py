from __future__ import annotations

from pathlib import Path

from support.remote_logs import ORDERS_0, a_remote_log, partition_of
from tiered_storage.remote_log.service.chosen_partitions import NamedSelection, only
from tiered_storage.remote_log.source.partition_log import UnreadablePartition, name_of

PARTITIONS = {("orders", 0): 1, ("orders", 1): 1, ("clicks", 0): 1, ("clicks", 1): 1}
CLICKS_1 = partition_of("clicks", 1)


def test_the_selection_has_each_named_partition_and_no_other() -> None:
    selection = NamedSelection(chosen=frozenset({("orders", 0), ("clicks", 1)}))

    pairs = [(topic, number) for topic in ("orders", "clicks") for number in (0, 1)]
    assert [each for each in pairs if selection.matches(*each)] == [("orders", 0), ("clicks", 1)]
    assert [topic for topic in ("orders", "clicks", "payments") if selection.matches(topic)] == ["orders", "clicks"]
    assert selection.is_narrowed


def test_the_source_shows_the_chosen_partitions_and_no_other(tmp_path: Path) -> None:
    with a_remote_log(tmp_path, PARTITIONS).open() as remote_log:
        chosen, selection = only(remote_log, [ORDERS_0, CLICKS_1, partition_of("payments")])
        source = chosen.context.source

        assert [name_of(each) for each in source.partitions()] == [("orders", 0), ("clicks", 1)]
        assert sorted(map(name_of, source.names()), key=str) == [("clicks", 1), ("orders", 0)]
        assert {each.topic_id_partition for each in chosen.plan_copy(selection).segments} == {ORDERS_0, CLICKS_1}


def test_a_partition_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, PARTITIONS)
    (files.partition_directory("orders", 0) / "leader-epoch-checkpoint").write_text("no checkpoint")
    with files.open() as remote_log:
        chosen, _ = only(remote_log, [ORDERS_0, CLICKS_1])

        broken, sound = chosen.context.source.partitions()

        assert isinstance(broken, UnreadablePartition)
        assert (name_of(broken), name_of(sound)) == (("orders", 0), ("clicks", 1))
