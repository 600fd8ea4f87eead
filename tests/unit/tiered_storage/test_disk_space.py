from __future__ import annotations

from pathlib import Path

from tiered_storage.disk_space import DiskReserve


def test_a_link_in_the_place_of_the_reserve_is_removed_and_its_file_left_alone(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_bytes(bytes(100))
    reserve = DiskReserve(tmp_path / "reserve", 100)
    reserve.path.symlink_to(tmp_path / "theirs")
    reserve.spend(40)
    reserve.take_back()
    assert (tmp_path / "theirs").read_bytes() == bytes(100)
    assert not reserve.path.is_symlink()


def test_a_reserve_gives_a_part_of_its_room_or_all_of_it(tmp_path: Path) -> None:
    reserve = DiskReserve(tmp_path / "reserve", 10_000)
    reserve.make()
    reserve.spend(4_000)
    assert reserve.path.stat().st_size == 6_000
    reserve.spend()
    assert not reserve.path.exists()
