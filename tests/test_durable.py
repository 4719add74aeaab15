"""Files on the disk: whole, under their own names only, and by one process at a time."""

import os
import shutil
import stat
from pathlib import Path

import pytest
import torch

from heliomesh.common.durable import (
    LostFolderError,
    alone_in,
    check_held,
    unlinked,
    write_tensors,
    write_text,
    written_whole,
)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_no_planted_link_is_followed(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_text("precious")
    folder.mkdir()
    (folder / ".a.json.part").symlink_to(victim)
    (folder / f".a.json.{8 * '0f'}.part").symlink_to(victim)
    write_text(folder / "a.json", "new")
    assert victim.read_text() == "precious"
    assert (folder / "a.json").read_text() == "new"
    assert names(folder) == {"a.json", ".a.json.part"}  # the second one looked like a killed process's


def test_a_temporary_name_is_new_each_time(tmp_path: Path) -> None:
    used = []
    for _ in range(2):
        with written_whole(tmp_path / "a") as path:
            used.append(path.name)
            path.write_text("a")
    assert used[0] != used[1]


def test_a_link_that_takes_the_place_of_the_temporary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")

    def replace_it() -> None:
        with written_whole(tmp_path / "a") as path:
            path.unlink()
            path.symlink_to(tmp_path / "victim")

    with pytest.raises(OSError, match="symbolic link"):
        replace_it()
    assert names(tmp_path) == {"victim"}


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    left = {f".a.{8 * '0f'}.part", f".a.b.{8 * '0f'}.part", ".a.other.part"}
    for name in left:
        (tmp_path / name).write_bytes(b"half")
    write_text(tmp_path / "a", "whole")
    assert names(tmp_path) == {"a", f".a.b.{8 * '0f'}.part", ".a.other.part"}


def test_a_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_tensors_have_the_same_permissions_and_the_process_keeps_its_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The umask is the whole process's: another thread would make its files under a changed one."""
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "umask", pytest.fail)
            write_tensors(tmp_path / "a.safetensors", {"a": torch.zeros(2)})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.safetensors").stat().st_mode) == 0o640


def test_a_lock_is_no_link(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / ".lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"), alone_in(folder):
        pytest.fail("the lock was taken")
    with pytest.raises(OSError, match="symbolic link"), open(folder / ".lock", "wb", opener=unlinked):
        pytest.fail("the link was followed")
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("successor", [False, True])
def test_a_removed_folder_is_noticed_and_left_alone(tmp_path: Path, successor: bool) -> None:
    folder = tmp_path / "run"

    def lose() -> None:
        with alone_in(folder):
            write_text(folder / "before", "")
            shutil.rmtree(folder)
            if successor:
                folder.mkdir()
                (folder / ".lock").write_bytes(b"")  # of a second process
            write_text(folder / "after", "")

    with pytest.raises(LostFolderError, match="run: this folder was removed or replaced"):
        lose()
    assert folder.exists() == successor
    if successor:
        assert names(folder) == {".lock"}
    check_held()  # nothing is held any more


def test_a_file_begun_before_the_loss_does_not_appear_after_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def lose() -> None:
        with alone_in(folder), written_whole(tmp_path / "result") as path:
            path.write_text("half of two")
            folder.rename(tmp_path / "elsewhere")

    with pytest.raises(LostFolderError):
        lose()
    assert not (tmp_path / "result").exists()


@pytest.mark.parametrize("written", [[], ["a"]])
def test_a_folder_that_stays_empty_is_not_left_behind(tmp_path: Path, written: list[str]) -> None:
    folder = tmp_path / "deep" / "run"

    def err() -> None:
        with alone_in(folder):
            for name in written:
                write_text(folder / name, "")
            raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        err()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == written
    assert (tmp_path / "deep").exists() == bool(written)
