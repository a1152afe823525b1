"""Folders of models of other nodes: what a node's agent finds, copies and refuses, without a cluster."""

import shutil
import threading
from pathlib import Path

import pytest

pytest.importorskip("ray")

from conftest import REPOSITORY  # noqa: E402

from cotensor import ConflictError, InvalidError, IoError, NotFoundError, OverBudgetError  # noqa: E402
from cotensor.ray import folders, model_folders, transfer  # noqa: E402
from cotensor.ray.files import FileOf, OpenFile  # noqa: E402
from cotensor.ray.holdings import Holdings  # noqa: E402
from cotensor.ray.model_folders import HASHING, Folder, ModelFolders, Problem, Wanted  # noqa: E402
from cotensor.ray.models import sources  # noqa: E402
from cotensor.ray.pulls import Pulls  # noqa: E402
from cotensor.ray.trees import Trees  # noqa: E402

BERT = REPOSITORY / "fixtures" / "tiny" / "bert"


class Node:
    """A node's agent: relative names of models are below its own folder ``base``. ``nodes`` are all of the cluster."""

    def __init__(self, name, parent, nodes):
        self.name, self.nodes, self.base = name, nodes, parent / name
        self.base.mkdir()
        self.does_answer = True
        self.tokens, self.left, self.trees, self.began = {}, [], Trees(), lambda: None
        self.server = transfer.Server("127.0.0.1", self.find)
        self.pulls = Pulls(Holdings(), self)
        self.root = parent / f"ray-{name}"
        self.folders = ModelFolders(name, self.root, self.pulls, self.keep, list)

    def keep(self, files):
        new = [f"{self.name}{len(self.tokens) + number}".encode().ljust(28) for number in range(len(files))]
        self.tokens.update(zip(new, files))
        return new

    def find(self, name):
        self.began()
        return self.pulls.find(name) or self.tokens[name]

    def join(self, node, token, name):
        origin, token = self.nodes[node], bytes.fromhex(token)
        return [*origin.trees.join(origin.tokens[token].id, token, self.name, self.server.address), origin.server.address]

    def leave(self, node, token):
        self.left.append(token)
        self.nodes[node].trees.leave(bytes.fromhex(token), self.name)

    def orphan(self, key):
        return None

    def answer(self, method, argument):
        if method == "describe_model":
            return self.folders.describe(argument._replace(base=str(self.base)))
        try:
            return self.folders.lend(argument)
        except NotFoundError:
            # It is raised at the other node then.
            return None

    def bring(self, name="bert", variant=None):
        model, folder = self.folders.bring(name, str(self.base), variant)
        assert not folder or model.startswith(folder)
        return Path(model)

    def is_empty(self):
        return [path.name for path in self.root.iterdir()] == ["lock"] and self.pulls._arrivals == {}


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    nodes = {}
    for name in ("a", "b", "c"):
        nodes[name] = Node(name, tmp_path, nodes)

    made = nodes

    def answers(own, method, argument, nodes):
        return [(name, made[name].answer(method, argument)) for name in nodes if made[name].does_answer]

    monkeypatch.setattr(model_folders, "others", lambda own: [name for name in made if name != own])
    monkeypatch.setattr(model_folders, "answers", answers)
    monkeypatch.setattr(model_folders, "answer_of", lambda node, method, argument: made[node].answer(method, argument))
    monkeypatch.setattr(model_folders, "_ASK_INTERVAL", 0.01)
    monkeypatch.setattr(transfer, "SILENCE_TIMEOUT", 60)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    yield nodes
    for node in nodes.values():
        node.server.close()


@pytest.fixture
def a(nodes):
    shutil.copytree(BERT, nodes["a"].base / "bert")
    return nodes["a"]


@pytest.fixture
def b(nodes):
    return nodes["b"]


def equal(folder, other=BERT):
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return len(files) > 5 and all((folder / path).read_bytes() == (other / path).read_bytes() for path in files)


def test_a_folder_comes_once_and_from_a_copy_when_its_origin_has_lost_it(a, b, nodes):
    folder = b.bring()
    sent = a.server.sent_bytes
    assert equal(folder) and folder.name == "bert" and sent == sum(path.stat().st_size for path in folder.rglob("*.*"))
    assert b.bring() == folder and a.server.sent_bytes == sent and b.folders.names() == ["bert"]
    shutil.rmtree(a.base / "bert")
    assert equal(nodes["c"].bring()) and a.server.sent_bytes == sent == b.server.sent_bytes
    assert b.bring() == folder, "no other node has files of its own"


def test_what_the_own_node_has_is_used(a):
    assert a.bring() == a.base / "bert" and a.is_empty()


def test_a_model_whose_file_is_missing_is_refused_with_its_node_and_file(a, b):
    (a.base / "bert" / "config.json").unlink()
    with pytest.raises(InvalidError, match="no node .* 'bert' in a usable form: node a: .*config.json: a model needs"):
        b.bring()
    shutil.rmtree(a.base / "bert" / "onnx")
    shutil.copy(BERT / "config.json", a.base / "bert")
    with pytest.raises(InvalidError, match="node a: .*no ONNX graph"):
        b.bring()
    shutil.rmtree(a.base / "bert")
    with pytest.raises(NotFoundError, match="no node of the cluster has the model 'bert', .*cotensor pull bert"):
        b.bring()
    assert b.is_empty()


def test_a_node_that_does_not_answer_is_named(a, b):
    a.does_answer = False
    with pytest.raises(NotFoundError, match="no node of the cluster has the model 'bert'.*; without an answer: node a$"):
        b.bring()
    a.does_answer = True
    assert equal(b.bring())


def test_an_agent_that_another_node_starts_meanwhile_is_asked(a, b):
    # It had no agent when it was asked, and has one when this node starts those that are missing.
    a.does_answer, waited = False, []

    def started(nodes):
        waited.extend(nodes)
        a.does_answer = True
        return nodes

    b.folders._start = started
    assert equal(b.bring()) and waited == ["a"]


def test_a_node_with_an_unusable_folder_leaves_another_ones(a, b, nodes):
    shutil.copytree(BERT, nodes["c"].base / "bert")
    (a.base / "bert" / "config.json").write_text("{")
    assert equal(b.bring()) and a.server.sent_bytes == 0


@pytest.mark.parametrize("name", ["onnx/model.onnx_data", "tokenizer.json"])
def test_a_link_out_of_the_folder_is_not_sent(a, b, name):
    """An engine does not read such weights either, and a copy would make them files of the folder."""
    path = a.base / "bert" / name
    shutil.move(path, a.base / "outside")
    path.symlink_to(a.base / "outside")
    with pytest.raises(InvalidError, match=f"node a: .*{name} is a link out of the model's folder"):
        b.bring()
    path.unlink()
    shutil.move(a.base / "outside", path.with_name("inside"))
    path.symlink_to("inside")
    assert equal(b.bring()) and b.bring().joinpath(name).is_file() and not b.bring().joinpath(name).is_symlink()


@pytest.mark.parametrize(
    "end, path", [("..", "x"), ("../../up", "x"), ("/tmp", "x"), ("bert", "../../x"), ("bert", "/x"), ("bert", "a\0")]
)
def test_a_folder_with_a_hostile_path_is_refused(a, b, monkeypatch, tmp_path, end, path):
    """The paths come from another node."""
    honest = a.answer

    def answer(method, argument):
        found = honest(method, argument)
        if not isinstance(found, Folder):
            return found
        return found._replace(end=end, files=(found.files[0]._replace(path=path),), fingerprint="../up")

    config = BERT / "config.json"
    sent = FileOf("config.json", config.stat().st_size, "0" * 64)
    monkeypatch.setattr(a.folders, "lend", lambda fingerprint: a.keep([OpenFile(config, sent)]))
    monkeypatch.setattr(a, "answer", answer)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidError, match="not a path in a model's folder"):
        b.bring()
    assert sorted(tmp_path.rglob("*")) == before and b.is_empty()


def test_a_name_that_leads_upwards_names_no_folder_upwards(a, b):
    (a.base / "bert" / "deeper").mkdir()
    (b.base / "bert" / "deeper").mkdir(parents=True)
    folder = b.bring("bert/deeper/..")
    assert folder.is_relative_to(b.root) and ".." not in folder.parts and equal(folder)


def test_a_model_without_room_is_not_begun(a, b, monkeypatch):
    disk = shutil._ntuple_diskusage
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda root: disk(0, 0, 1000))
    with pytest.raises(OverBudgetError, match="bert: .* bytes do not fit: models of other nodes may have 500 bytes"):
        b.bring()
    assert b.is_empty() and a.server.sent_bytes == 0


@pytest.mark.parametrize("how", ["other bytes", "shorter", "longer", "removed"])
def test_files_that_change_between_description_and_copy_are_an_error(a, b, monkeypatch, how):
    path = a.base / "bert" / "onnx" / "model.onnx_data"
    data = path.read_bytes()
    lend = a.folders.lend

    def change(fingerprint):
        if how == "removed":
            path.unlink()
        else:
            path.write_bytes({"other bytes": data[::-1], "shorter": data[:-1], "longer": data + b"x"}[how])
        return lend(fingerprint)

    monkeypatch.setattr(a.folders, "lend", change)
    with pytest.raises(IoError, match="bert.*changed"):
        b.bring()
    # The tokens of the files before end with the call, in a cluster.
    assert b.is_empty() and len(b.left) == (how == "other bytes")
    monkeypatch.setattr(a.folders, "lend", lend)
    path.write_bytes(data[::-1])
    assert b.bring().joinpath("onnx", "model.onnx_data").read_bytes() == data[::-1], "the next call finds the new files"


@pytest.mark.parametrize("how", ["other bytes", "shorter"])
def test_files_that_change_during_a_copy_are_an_error(a, b, how):
    path = a.base / "bert" / "onnx" / "model.onnx_data"
    data = path.read_bytes()

    def change():
        # Its file is open on the node.
        with open(path, "r+b") as file:
            file.write(data[:100][::-1]) if how == "other bytes" else file.truncate(100)

    a.began = change
    with pytest.raises(IoError, match="model.onnx_data.*(changed meanwhile|did not come)"):
        b.bring()
    assert b.is_empty() and len(b.left) == 1


def test_another_node_with_equal_files_takes_the_place_of_one_that_fails(a, b, nodes, monkeypatch):
    shutil.copytree(BERT, nodes["c"].base / "bert")

    def refuse():
        raise OSError("the agent ends")

    monkeypatch.setattr(transfer, "_PAUSE", 0.01)
    a.began = refuse
    assert equal(b.bring()) and nodes["c"].server.sent_bytes > 0 and len(b.left) == 1


def test_nodes_that_have_different_files_are_named(a, b, nodes):
    shutil.copytree(BERT, nodes["c"].base / "bert")
    (nodes["c"].base / "bert" / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ConflictError, match="bert: node a and node c have published different models under this name"):
        b.bring()
    assert b.is_empty()


def test_folders_conflict_only_when_contents_differ():
    one, same = (Folder(node, "bert", (), "1", False) for node in "ab")
    assert sources("bert", [one, same], "models") == [one, same]


def test_threads_that_ask_at_a_time_share_one_copy(a, b):
    found = []
    threads = [threading.Thread(target=lambda: found.append(b.bring())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8 and len(set(found)) == 1
    assert a.server.sent_bytes == sum(path.stat().st_size for path in found[0].rglob("*.*"))


def test_a_node_that_hashes_says_so_and_is_asked_again(a, b, monkeypatch):
    gate, of = threading.Event(), a.folders._hashes.of
    monkeypatch.setattr(a.folders._hashes, "of", lambda path: gate.wait(60) and of(path))
    wanted = Wanted("bert", str(a.base), None)
    assert a.folders.describe(wanted) == HASHING
    honest = a.answer

    def answer(method, argument):
        found = honest(method, argument)
        gate.set()
        return found

    monkeypatch.setattr(a, "answer", answer)
    assert equal(b.bring())


def test_a_node_whose_disk_hangs_is_a_problem(a, b, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(a.folders._hashes, "of", lambda path: gate.wait(60) and (0, ""))
    monkeypatch.setattr(model_folders, "_HASHING_MAX", 0.1)
    with pytest.raises(InvalidError, match="node a: its files are still read after"):
        b.bring()
    gate.set()


def test_an_answer_that_was_not_fetched_is_not_given_later(a, monkeypatch):
    wanted, gate, of = Wanted("bert", str(a.base), None), threading.Event(), a.folders._hashes.of
    monkeypatch.setattr(a.folders._hashes, "of", lambda path: gate.wait(60) and of(path))
    assert a.folders.describe(wanted) == HASHING
    gate.set()
    first = a.folders._describing[wanted].result(60)[1]
    (a.base / "bert" / "config.json").unlink()
    monkeypatch.setattr(model_folders, "_KEPT_SECONDS", -1)
    found = HASHING
    while found == HASHING:
        found = a.folders.describe(wanted)
    assert isinstance(first, Folder) and isinstance(found, Problem)


def test_an_error_while_a_model_is_described_is_told_once(a, b, monkeypatch):
    monkeypatch.setattr(model_folders, "_end", lambda path: 1 // 0)
    with pytest.raises(InvalidError, match="node a: ZeroDivisionError"):
        b.bring()
    monkeypatch.undo()
    assert a.folders._describing == {}
