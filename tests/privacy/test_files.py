"""Files that a fault cannot tear."""

import errno
import json
import os
import stat
import subprocess
import sys
import threading

import pytest

from lipdp.privacy import files

pytestmark = pytest.mark.backend_free


def mode(path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_at_the_end(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with files.replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old" and temporary.parent == tmp_path and temporary.name.endswith("a.txt")
    assert path.read_text() == "new" and names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_an_error_changes_nothing(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(type(error)), files.replacing(path) as temporary:
        temporary.write_text("ne")
        raise error
    assert path.read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_content_is_on_the_disk_before_the_name_changes(tmp_path, monkeypatch):
    """Without that a machine that stops can leave an empty file under the new name."""
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append("fsync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("replace"), replace(a, b)))
    files.write_text(tmp_path / "a.txt", "new")
    assert done == ["fsync", "replace", "fsync"]


def test_modes(tmp_path):
    before = os.umask(0o022)
    try:
        for name, private in (("open", False), ("closed", True)):
            files.write_text(tmp_path / name, "x", private)
        assert (mode(tmp_path / "open"), mode(tmp_path / "closed")) == (0o644, 0o600)
        (tmp_path / "open").chmod(0o640)
        files.write_text(tmp_path / "open", "y")
        assert mode(tmp_path / "open") == 0o640
        files.write_text(tmp_path / "open", "secret", private=True)
        assert mode(tmp_path / "open") == 0o600
    finally:
        os.umask(before)


def test_a_private_file_is_private_while_it_is_written(tmp_path):
    with files.replacing(tmp_path / "a", private=True) as temporary:
        assert mode(temporary) == 0o600
        temporary.write_text("secret")


def test_links_are_followed(tmp_path):
    (tmp_path / "there").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    files.write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there").read_text() == "new"


def test_a_folder_is_replaced_as_one(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "old").write_text("old")
    with pytest.raises(OSError), files.replacing(path) as temporary:
        temporary.mkdir()
        (temporary / "half").write_text("half")
        raise OSError
    assert names(path) == ["old"]
    with files.replacing(path) as temporary:
        temporary.mkdir()
        (temporary / "new").write_text("new")
    assert names(path) == ["new"] and names(tmp_path) == ["model"]


@pytest.mark.parametrize("in_one_step", [True, False])
def test_folders_exchange_their_names(tmp_path, monkeypatch, in_one_step):
    if not in_one_step:
        monkeypatch.setattr(files, "_SWAP", {})
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(name)
    files.exchange(tmp_path / "one", tmp_path / "other")
    assert (names(tmp_path / "one"), names(tmp_path / "other")) == (["other"], ["one"])
    assert names(tmp_path) == ["one", "other"]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder to write into"):
        files.write_text(tmp_path / "none" / "a.txt", "x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            files.write_text(tmp_path / "a.txt", "new")
        assert (tmp_path / "a.txt").read_text() == "old"
    finally:
        tmp_path.chmod(0o700)


def test_leftovers_of_a_killed_process_are_swept(tmp_path):
    (tmp_path / ".~123-abc~a.txt").write_text("half")
    (tmp_path / ".~123-abc~b.txt").write_text("half")
    files.sweep(tmp_path, "a.txt")
    assert names(tmp_path) == [".~123-abc~b.txt"]
    assert files.is_temporary(".~123-abc~b.txt") and not files.is_temporary("b.txt")


def test_stamps():
    values = {"a": [1.5, 0.1 + 0.2], "b": {"é": None}}
    assert files.unstamped(files.parse(json.dumps(files.stamped(values)))) == values
    for wrong in (files.stamped(values) | {"a": [1.5, 0.3]}, files.stamped(values) | {"c": 1}, values):
        with pytest.raises(ValueError, match="checksum"):
            files.unstamped(wrong)


def test_deep_nesting_is_no_recursion_error():
    with pytest.raises(ValueError, match="nested too deeply"):
        files.parse("[" * 100_000)


def test_a_lock_keeps_others_out_until_it_is_given_back(tmp_path):
    with files.locked(tmp_path / "lock"):
        with pytest.raises(BlockingIOError), files.locked(tmp_path / "lock"):
            pass
    with files.locked(tmp_path / "lock"):
        pass


def test_threads_that_write_one_name_do_not_mix(tmp_path):
    texts = [str(i) * 100_000 for i in range(8)]
    threads = [threading.Thread(target=files.write_text, args=(tmp_path / "a", text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "a").read_text() in texts and names(tmp_path) == ["a"]


# Without threads of a framework, which do not go well with a fork.
FORKS = """
import contextlib, os, runpy, sys, tempfile
locked = runpy.run_path(sys.argv[1])["locked"]
path = os.path.join(tempfile.mkdtemp(), "lock")

def free():
    try:
        with locked(path):
            return True
    except BlockingIOError:
        return False

found, stack, (read, write) = [], contextlib.ExitStack(), os.pipe()
with stack:
    stack.enter_context(locked(path))
    if not os.fork():
        stack.close()  # of the child, which ends
        os._exit(0)
    os.wait()
    found.append(free())
    if not os.fork():
        os.close(write)
        os.read(read, 1)  # until the parent ends
        os._exit(0)
found.append(free())
sys.stdout.write(str(found))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_lock_is_that_of_its_holder_and_not_of_processes_that_were_forked_meanwhile():
    """A pool of workers that began while `fit` ran held the lock of a checkpoint, and the next `fit` was refused."""
    command = [sys.executable, "-c", FORKS, files.__file__]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[False, True]"
