"""Files of models on their way between nodes, and the folders of their copies, without a cluster."""

import fcntl
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")

from cotensor import InvalidError, IoError, NotFoundError, OverBudgetError  # noqa: E402
from cotensor.ray import files, folders, transfer  # noqa: E402
from cotensor.ray.files import FileOf, FileTarget, Hashes, OpenFile, Recent, sha256_of  # noqa: E402
from cotensor.ray.folders import Folders, remove_ended  # noqa: E402
from cotensor.ray.holdings import Holdings  # noqa: E402
from cotensor.ray.pulls import Pulls  # noqa: E402
from cotensor.ray.trees import Trees  # noqa: E402

DATA = random.Random(2).randbytes(transfer.STREAM_BYTES * 2 + 5)
TOKEN = "aa" * 28


def file_of(path, data):
    return FileOf(path, len(data), hashlib.sha256(data).hexdigest())


class Node:
    """A node's agent. The first one has the file; it keeps the tree of those that copy it."""

    def __init__(self, name, folder, origin=None):
        self.name, self.folder, self.origin = name, folder, origin or self
        self.trees, self.left, self.lent = Trees(), [], {}
        self.pulls = Pulls(Holdings(), self)
        self.server = transfer.Server("127.0.0.1", self.find)

    def find(self, name):
        return self.pulls.find(name) or self.lent[name]

    def join(self, node, token, name):
        others = self.origin.trees.join("file", bytes.fromhex(token), self.name, self.server.address)
        return [*others, self.origin.server.address]

    def leave(self, node, token):
        self.left.append(token)

    def orphan(self, key):
        return None

    def lend(self, path, file):
        self.lent[bytes.fromhex(TOKEN)] = OpenFile(path, file)

    def receive(self, arrival, file):
        name = f"{file.path} of bert"
        return self.pulls.receive(arrival, ("0", file.id), TOKEN, name, lambda: FileTarget(self.folder, file.path, file))


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """No source is left because the machine has other load."""
    monkeypatch.setattr(transfer, "SILENCE_TIMEOUT", 60)


@pytest.fixture
def nodes(tmp_path):
    nodes = []
    for name in "012":
        folder = tmp_path / name
        folder.mkdir()
        nodes.append(Node(name, folder, nodes[0] if nodes else None))
    yield nodes
    for node in nodes:
        node.server.close()


@pytest.mark.parametrize("data", [DATA, b"x", b""])
def test_files_arrive_and_are_passed_on(nodes, data):
    origin, first, second = nodes
    (origin.folder / "weights").write_bytes(data)
    file = file_of("onnx/weights", data)
    origin.lend(origin.folder / "weights", file)
    with first.pulls.arriving(("0", file.id)) as arrival:
        assert first.receive(arrival, file).read_bytes() == data
        with second.pulls.arriving(("0", file.id)) as another:
            assert second.receive(another, file).read_bytes() == data
    assert [node.server.sent_bytes for node in nodes] == [len(data), len(data), 0]
    assert first.pulls._arrivals == {} and origin.left == first.left == []


def test_other_bytes_than_were_stated_are_refused_and_leave_nothing(nodes):
    origin, first, _ = nodes
    path = origin.folder / "weights"
    path.write_bytes(DATA)
    file = file_of("weights", DATA[::-1])
    origin.lend(path, file)
    with first.pulls.arriving(("0", file.id)) as arrival, pytest.raises(IoError, match="weights of bert of node 0: other bytes"):
        first.receive(arrival, file)
    assert list(first.folder.iterdir()) == [] and first.left == [TOKEN]
    # It is shortened while it is read.
    os.truncate(path, 100)
    with first.pulls.arriving(("0", file.id)) as arrival:
        with pytest.raises(IoError, match="weights of bert of node 0: .* did not come"):
            first.receive(arrival, file)
    assert list(first.folder.iterdir()) == [] and first.left == [TOKEN] * 2


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "a//x", "", ".", "a/..", "a\0b"])
def test_paths_out_of_the_folder_are_refused(tmp_path, path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(InvalidError, match="not a path in a model's folder"):
        FileTarget(folder, path, file_of("x", b"x"))
    assert list(tmp_path.rglob("*")) == [folder]


def test_paths_that_cannot_be_made_are_errors_of_the_file(tmp_path):
    FileTarget(tmp_path, "a", file_of("a", b"x"))
    for path in ("a", "a/b", "b" * 300):
        with pytest.raises(IoError, match="exists|Not a directory|too long") as raised:
            FileTarget(tmp_path, path, file_of(path, b"x"))
        assert raised.value.field == path
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_is_no_file_of_the_stated_length_is_not_sent(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "short").write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    for name, why in [("pipe", "not a regular"), ("short", "another length"), ("folder", "not a regular"), ("gone", "No such")]:
        with pytest.raises(NotFoundError, match=f"/{name}: .*{why}"):
            OpenFile(tmp_path / name, file_of(name, b"xy"))
    with pytest.raises(OSError, match="not a regular file"):
        Hashes().of(tmp_path / "pipe")


def test_a_file_larger_than_the_memory_of_the_process_arrives(nodes, tmp_path):
    """The bytes are in no memory of the process itself, neither where they are sent nor where they arrive."""
    size = 64 << 20
    with open(nodes[0].folder / "large", "wb") as large:
        large.truncate(size)
        large.seek(size - 1)
        large.write(b"x")
    program = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_ray_files import FileOf, Node, Path, sha256_of, transfer
transfer.SILENCE_TIMEOUT = 60
origin, node = Node("0", Path({str(nodes[0].folder)!r})), Node("1", Path({str(nodes[1].folder)!r}))
node.origin = origin
with open(origin.folder / "large", "rb") as large:
    file = FileOf("large", {size}, sha256_of(large.fileno()))
origin.lend(origin.folder / "large", file)
used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
# Private memory that can be written: the stacks of threads, and what is allocated.
resource.setrlimit(resource.RLIMIT_DATA, (used + {size // 2}, -1))
threading = __import__("threading")
threading.stack_size(1 << 20)
with node.pulls.arriving(("0", file.id)) as arrival:
    print(node.receive(arrival, file).stat().st_size)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == str(size), done.stderr


def test_files_are_hashed_again_after_a_change(tmp_path):
    hashed, later = [], time.time_ns() + 10 * files._SETTLED_NS
    hashes = Hashes(lambda fd: hashed.append(1) or sha256_of(fd), lambda: later)
    path = tmp_path / "x"
    path.write_bytes(b"one")
    assert hashes.of(path) == hashes.of(path) == (3, hashlib.sha256(b"one").hexdigest())
    (tmp_path / "link").symlink_to(path)
    assert hashes.of(tmp_path / "link") == hashes.of(path) and len(hashed) == 1
    before = path.stat().st_mtime_ns
    path.write_bytes(b"two")
    # As programs do that keep the times of files.
    os.utime(path, ns=(before, before))
    assert hashes.of(path) == (3, hashlib.sha256(b"two").hexdigest()) and len(hashed) == 2
    with pytest.raises(OSError):
        hashes.of(tmp_path / "gone")


def test_files_that_have_just_changed_are_hashed_each_time(tmp_path):
    """The next change can be in the same step of the file system's clock."""
    path = tmp_path / "x"
    path.write_bytes(b"one")
    stamp = path.stat()
    hashes = Hashes(now=lambda: stamp.st_ctime_ns)
    assert hashes.of(path) == hashes.of(path) == (3, hashlib.sha256(b"one").hexdigest()) and hashes._known == {}


def test_hashes_and_folders_that_are_remembered_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_HASHES_MAX", 2)
    hashed, hashes = [], Hashes(lambda fd: hashed.append(fd) or "hash", lambda: time.time_ns() + 10**11)
    for name in "abc":
        (tmp_path / name).touch()
    for name in "abcca":
        hashes.of(tmp_path / name)
    assert len(hashed) == 4 and len(hashes._known) == 2
    recent = Recent(2)
    for key in "abac":
        recent[key] = key
    assert list(recent) == ["a", "c"], "the ones that were set last"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Folders with room for 100 bytes."""
    made = Folders(tmp_path / "ray-own")
    made.root = tmp_path / "ray-own"
    disk = shutil._ntuple_diskusage
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda root: disk(0, 0, 200 - folders._bytes_in(root)))
    return made


def make(made, content, nbytes):
    with made.new(content, nbytes, "bert") as folder:
        (folder / "x").write_bytes(bytes(nbytes))
    assert made.find(content) == made.root / content


def test_folders_that_are_not_used_give_way(made):
    make(made, "a", 40)
    make(made, "b", 40)
    os.utime(made.root / "b", (1, 1))
    os.utime(made.root / "a", (2, 2))
    make(made, "c", 60)
    assert set(made.contents()) == {"a", "c"}, "the one that was asked for longest ago"
    used = {content: folders.use(made.root / content) for content in "ac"}
    with pytest.raises(OverBudgetError, match="bert: 1 bytes do not fit: .* those in use have 100"):
        make(made, "d", 1)
    os.close(used["c"])
    make(made, "d", 60)
    assert made.contents() == ["a", "d"] and made.find("c") is None and folders.use(made.root / "c") is None
    os.close(used["a"])


def test_a_folder_is_used_by_the_children_of_a_process_too(made):
    make(made, "a", 100)
    descriptor = folders.use(made.root / "a")
    child = os.fork()
    if child == 0:
        signal.pause()
    os.close(descriptor)
    with pytest.raises(OverBudgetError):
        make(made, "b", 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    make(made, "b", 1)


def test_folders_that_are_made_at_a_time_share_the_room(made):
    with made.new("a", 60, "bert"):
        with pytest.raises(OverBudgetError, match="those in use have 60"), made.new("b", 60, "gpt"):
            pass
    make(made, "b", 100)


def test_a_folder_that_was_not_completed_is_removed(made):
    with pytest.raises(KeyError), made.new("a", 10, "bert") as folder:
        (folder / "x").write_bytes(b"x")
        raise KeyError
    assert made.contents() == [] and [path.name for path in made.root.iterdir()] == ["lock"]
    # What a killed agent leaves.
    folders._partial(made.root).mkdir()
    (made.root / "complete").mkdir()
    os.close(made._agent_lock)
    again = Folders(made.root)
    assert again.contents() == ["complete"] and sorted(path.name for path in made.root.iterdir()) == ["complete", "lock"]


def test_a_removal_that_is_killed_leaves_no_folder_that_seems_complete(made, monkeypatch):
    make(made, "a", 60)
    monkeypatch.setattr(folders.shutil, "rmtree", lambda *_, **__: None)
    make(made, "b", 60)
    assert made.contents() == ["b"] and made.find("a") is None


def test_folders_of_ended_nodes_are_removed(made, tmp_path):
    ended, used, running = (Folders(tmp_path / f"ray-{name}") for name in ("ended", "used", "running"))
    for one in (ended, used):
        with one.new("a", 0, "bert"):
            pass
        os.close(one._agent_lock)
    descriptor = folders.use(tmp_path / "ray-used" / "a")
    (tmp_path / "other").mkdir()
    (tmp_path / "ray-node.sock").touch()
    remove_ended(tmp_path, made.root)
    left = ["other", "ray-node.sock", "ray-own", "ray-running", "ray-used"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left
    assert used.contents() == ["a"] and running.contents() == []
    os.close(descriptor)
    remove_ended(tmp_path, made.root)
    assert not (tmp_path / "ray-used").exists()


def test_an_agent_whose_folder_is_removed_while_it_starts_makes_it_again(tmp_path, monkeypatch):
    removed, flock = [], fcntl.flock

    def lock(descriptor, how):
        if not removed:
            # Another agent of this machine had the lock before.
            removed.append(shutil.rmtree(tmp_path / "ray-own"))
        flock(descriptor, how)

    monkeypatch.setattr(folders.fcntl, "flock", lock)
    made = Folders(tmp_path / "ray-own")
    assert removed and (tmp_path / "ray-own" / "lock").exists() and made.contents() == []


def test_a_lock_that_another_process_keeps_is_an_error(made, monkeypatch):
    monkeypatch.setattr(folders, "_LOCK_TIMEOUT", 0.1)
    make(made, "a", 10)
    with pytest.raises(IoError, match="ray-own/lock: another process has had its lock"):
        Folders(made.root)
    descriptor = os.open(made.root / "a", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(IoError, match="ray-own/a: another process has had its lock"):
        folders.use(made.root / "a")
    assert os.listdir("/proc/self/fd") == before
    os.close(descriptor)
    os.close(folders.use(made.root / "a"))
