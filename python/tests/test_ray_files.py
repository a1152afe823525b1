"""Files of models on their way between nodes, and the folders of their copies, without a cluster."""

import hashlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

from cotensor import InvalidError, IoError, NotFoundError, OverBudgetError  # noqa: E402
from cotensor.ray import folders, transfer  # noqa: E402
from cotensor.ray.files import FileOf, FileTarget, Hashes, OpenFile, sha256_of  # noqa: E402
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

    def lend(self, path, file):
        self.lent[bytes.fromhex(TOKEN)] = OpenFile(path, file)

    def receive(self, arrival, file):
        return self.pulls.receive(arrival, ("0", file.id), TOKEN, f"{file.path} of bert", lambda: FileTarget(self.folder, file))


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
    with first.pulls.arriving(("0", file.id)) as arrival, pytest.raises(IoError, match="weights: other bytes have come"):
        first.receive(arrival, file)
    assert list(first.folder.iterdir()) == [] and first.left == [TOKEN]
    # It is shortened while it is read.
    os.truncate(path, 100)
    with first.pulls.arriving(("0", file.id)) as arrival, pytest.raises(IoError, match="weights of bert of node 0: .* did not come"):
        first.receive(arrival, file)
    assert list(first.folder.iterdir()) == [] and first.left == [TOKEN] * 2
    with pytest.raises(NotFoundError, match="gone"):
        OpenFile(origin.folder / "gone", file)


def test_paths_out_of_the_folder_are_refused(tmp_path):
    for path in ("../x", "/x", "a/../../x", "a//x", ""):
        with pytest.raises(InvalidError, match="no path in a model's folder"):
            FileTarget(tmp_path, file_of(path, b"x"))


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
    hashed = []
    hashes = Hashes(lambda fd: hashed.append(1) or sha256_of(fd))
    path = tmp_path / "x"
    path.write_bytes(b"one")
    assert hashes.of(path) == hashes.of(path) == (3, hashlib.sha256(b"one").hexdigest())
    (tmp_path / "link").symlink_to(path)
    assert hashes.of(tmp_path / "link") == hashes.of(path) and len(hashed) == 1
    path.write_bytes(b"other")
    os.utime(path, ns=(0, 0))
    assert hashes.of(path) == (5, hashlib.sha256(b"other").hexdigest()) and len(hashed) == 2
    with pytest.raises(OSError):
        hashes.of(tmp_path / "gone")


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Folders with room for 100 bytes, and the set of those that are used."""
    used = set()
    made = Folders(tmp_path / "ray-own", Path("/no/socket"), used.__contains__)
    made.used, made.root = used, tmp_path / "ray-own"
    disk = shutil._ntuple_diskusage
    # The file of the lock counts, too.
    lock = (made.root / "lock").stat().st_size
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda root: disk(0, 0, 2 * (100 + lock) - folders._bytes_in(root)))
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
    assert set(made.contents()) == {"a", "c"}, "the one that was used longest ago"
    made.used.update("ac")
    with pytest.raises(OverBudgetError, match="bert: 1 bytes do not fit: .* those in use have"):
        make(made, "d", 1)
    made.used.remove("c")
    make(made, "d", 60)
    assert made.contents() == ["a", "d"] and made.find("c") is None


def test_a_folder_that_was_not_completed_is_removed(made):
    with pytest.raises(KeyError), made.new("a", 10, "bert") as folder:
        (folder / "x").write_bytes(b"x")
        raise KeyError
    assert made.contents() == [] and sorted(path.name for path in made.root.iterdir()) == ["lock"]
    # What a killed agent leaves.
    (made.root / "new-1").mkdir()
    (made.root / "complete").mkdir()
    made._lock.close()
    again = Folders(made.root, Path("/no/socket"), made._is_used)
    assert again.contents() == ["complete"] and not (made.root / "new-1").exists()


def test_folders_of_ended_nodes_are_removed(made, tmp_path):
    ended = Folders(tmp_path / "ray-ended", Path("/ended"), bool)
    restarting = Folders(tmp_path / "ray-restarting", Path("/restarting"), bool)
    running = Folders(tmp_path / "ray-running", Path("/running"), bool)
    for one in (ended, restarting):
        make_one = one.new("a", 0, "bert")
        with make_one:
            pass
        one._lock.close()
    (tmp_path / "other").mkdir()
    remove_ended(tmp_path, made.root, lambda socket: socket == Path("/restarting"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "ray-own", "ray-restarting", "ray-running"]
    assert restarting.contents() == ["a"] and running.contents() == []
