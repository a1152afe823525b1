"""Embeddings of texts by the daemon's model process."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Iterator

import numpy as np
import pytest
from conftest import REPOSITORY, Daemon, serving

import cotensor
from cotensor._embedder_names import OtherNames

BERT = REPOSITORY / "fixtures" / "tiny" / "bert"
TEXTS = ["gulls", "a crane lifts grain", "nets dry on the quay"]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with serving() as daemon:
        yield daemon


@pytest.fixture
def embedder(daemon: Daemon) -> cotensor.Embedder:
    return cotensor.Embedder(BERT, store=daemon.connect())


def test_embeddings_have_a_row_for_each_text(embedder: cotensor.Embedder) -> None:
    rows = embedder.embed(TEXTS)
    assert rows.dtype == np.float32 and rows.flags.writeable and rows.shape == (3, embedder.get_sentence_embedding_dimension())
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert np.array_equal(embedder.embed(TEXTS[1]), rows[1])
    assert np.array_equal(embedder.embed(iter(TEXTS)), rows)
    assert embedder.embed([]).shape[0] == 0
    many = embedder.embed(TEXTS * 100)
    assert many.shape[0] == 300 and np.array_equal(many[297:], rows)


def test_names_of_other_libraries_work(embedder: cotensor.Embedder) -> None:
    rows = embedder.embed(TEXTS)
    assert np.array_equal(embedder.encode(TEXTS, batch_size=2, show_progress_bar=False), rows)
    assert np.allclose(embedder.encode(TEXTS[0], normalize_embeddings=True), rows[0], atol=1e-6)
    assert [row.shape for row in embedder.encode(TEXTS, convert_to_numpy=False)] == [rows[0].shape] * 3
    assert np.array_equal(list(embedder.passage_embed(TEXTS)), rows)
    assert np.array_equal(next(iter(embedder.query_embed(TEXTS[0]))), rows[0])
    assert np.array_equal(embedder.embed(TEXTS, batch_size=256, parallel=None), rows)
    neutral = {"precision": "float32", "output_value": "sentence_embedding", "device": "cpu", "pool": None, "prompt": None}
    assert np.array_equal(embedder.encode(TEXTS, **neutral), rows)
    assert np.array_equal(embedder.encode(TEXTS, truncate_dim=4), rows[:, :4])
    assert np.array_equal(embedder.encode_query(TEXTS[0], normalize_embeddings=False), rows[0])
    assert np.array_equal(embedder.encode_document(TEXTS), rows)
    assert np.array_equal(embedder.encode(sentences=TEXTS), rows) and np.array_equal(embedder.embed(documents=TEXTS), rows)
    assert np.array_equal(embedder.encode_query(sentences=TEXTS[0]), rows[0])
    for wrong in ({}, {"inputs": TEXTS, "sentences": TEXTS}):
        with pytest.raises(TypeError, match="one of the arguments inputs, sentences"):
            embedder.encode(**wrong)
    for option in ({"precision": "int8"}, {"prompt": "query: "}, {"output_value": "token_embeddings"}, {"other": 1}):
        with pytest.raises(cotensor.UnsupportedError, match=next(iter(option))):
            embedder.encode(TEXTS, **option)


def test_generators_take_texts_as_they_are_asked_for(embedder: cotensor.Embedder) -> None:
    taken = []

    def texts() -> Iterator[str]:
        for number in range(10_000):
            taken.append(number)
            yield TEXTS[number % 3]

    rows = embedder.passage_embed(texts())
    assert taken == []
    first = [next(rows) for _ in range(3)]
    assert np.array_equal(first, embedder.embed(TEXTS)) and len(taken) < 1000


def test_similarities_are_those_of_sentence_transformers(embedder: cotensor.Embedder) -> None:
    rows = embedder.embed(TEXTS)
    matrix = embedder.similarity(rows, rows[:2])
    assert matrix.shape == (3, 2) and matrix.dtype == np.float32
    assert np.allclose(np.diag(matrix), 1, atol=1e-5) and np.allclose(matrix, rows @ rows[:2].T, atol=1e-5)
    assert embedder.similarity(rows[0], rows).shape == (1, 3)
    a, b = np.random.default_rng(1).standard_normal((2, 4, 7)).astype(np.float32)
    wanted = {
        "cosine": lambda x, y: x @ y / (np.linalg.norm(x) * np.linalg.norm(y)),
        "dot": lambda x, y: x @ y,
        "euclidean": lambda x, y: -np.sqrt(((x - y) ** 2).sum()),
        "manhattan": lambda x, y: -np.abs(x - y).sum(),
    }
    for name, of in wanted.items():
        found = embedder.similarity(a, b, similarity_fn_name=name)
        assert np.allclose(found, [[of(x, y) for y in b] for x in a], atol=1e-5)
        assert np.allclose(embedder.similarity_pairwise(a, b, similarity_fn_name=name), np.diag(found), atol=1e-5)
    for wrong in ({"similarity_fn_name": "other"}, {"embeddings2": b[:, :3]}, {"embeddings2": b[None]}):
        with pytest.raises(cotensor.InvalidError, match=next(iter(wrong)).rstrip("12")):
            embedder.similarity(**{"embeddings1": a, "embeddings2": b, **wrong})


def test_one_text_is_not_its_letters(embedder: cotensor.Embedder) -> None:
    rows = embedder.embed(TEXTS)
    for take in (embedder.passage_embed, embedder.query_embed):
        assert [row.shape for row in take(TEXTS[1])] == [rows[1].shape]
    assert np.array_equal(embedder.encode(TEXTS[1], convert_to_numpy=False), rows[1])


def test_generators_name_the_position_of_a_wrong_text(embedder: cotensor.Embedder) -> None:
    with pytest.raises(cotensor.InvalidError, match=r"texts\[300\] must be a str, not int"):
        list(embedder.passage_embed([*TEXTS * 100, 5]))  # type: ignore[list-item]


def test_similarities_without_rows_have_their_shape() -> None:
    none, some = np.ones((0, 4), np.float32), np.ones((3, 4), np.float32)
    for name in ("cosine", "dot", "euclidean", "manhattan"):
        found = OtherNames().similarity(none, some, name), OtherNames().similarity(some, none, name)
        assert [(values.shape, values.dtype) for values in found] == [((0, 3), np.float32), ((3, 0), np.float32)]
        assert OtherNames().similarity_pairwise(none, none, name).shape == (0,)


def test_similarities_take_all_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    rows = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    for given in (rows, torch.nn.Parameter(rows), rows.to(torch.bfloat16), rows.double()):
        found = OtherNames().similarity(given, rows)
        assert type(found) is torch.Tensor and torch.allclose(found, torch.tensor([[1, 0.6], [0.6, 1]]))
    assert type(OtherNames().similarity(torch.nn.Parameter(rows), rows.numpy())) is np.ndarray


def test_pooling_is_given_or_that_of_the_name(daemon: Daemon, embedder: cotensor.Embedder, tmp_path: Path) -> None:
    model = tmp_path / "bge-small-en-v1.5"
    shutil.copytree(BERT, model, ignore=shutil.ignore_patterns("1_Pooling"))
    store = daemon.connect()
    by_name = cotensor.Embedder(model, store=store)
    with pytest.warns(RuntimeWarning, match='"cls".*bge-small-en-v1.5'):
        first = by_name.embed(TEXTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(by_name.embed(TEXTS), first)
        assert np.array_equal(cotensor.Embedder(model, store=store, pooling="cls").embed(TEXTS), first)
        assert np.array_equal(cotensor.Embedder(model, store=store, pooling="mean").embed(TEXTS), embedder.embed(TEXTS))
    unnamed = model.rename(tmp_path / "model")
    with pytest.raises(cotensor.InvalidError, match=r'pooling="cls".*1_Pooling/config.json'):
        cotensor.Embedder(unnamed, store=store).embed(TEXTS)
    with pytest.raises(cotensor.InvalidError, match="mean"):
        cotensor.Embedder(unnamed, store=store, pooling="first").embed(TEXTS)


def test_dimensions_are_the_first_ones(daemon: Daemon, embedder: cotensor.Embedder) -> None:
    with pytest.warns(RuntimeWarning, match="dimensions"):
        short = cotensor.Embedder(BERT, store=daemon.connect(), dimensions=4).embed(TEXTS)
    first = embedder.embed(TEXTS)[:, :4]
    assert np.allclose(short, first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-6)
    with pytest.raises(cotensor.InvalidError, match="dimensions"):
        cotensor.Embedder(BERT, store=daemon.connect(), dimensions=100_000).embed(TEXTS)
    with pytest.raises(cotensor.InvalidError, match="dimensions"):
        cotensor.Embedder(BERT, store=daemon.connect(), dimensions=0)


def test_wrong_input_is_an_error(daemon: Daemon, embedder: cotensor.Embedder, tmp_path: Path) -> None:
    with pytest.raises(cotensor.InvalidError, match=r"texts\[1\]"):
        embedder.embed(["a", 1])  # type: ignore[list-item]
    with pytest.raises(cotensor.CotensorError, match="prompt"):
        embedder.embed("a", prompt_name="none")
    with pytest.raises(cotensor.CotensorError, match="config.json"):
        cotensor.Embedder(tmp_path, store=daemon.connect()).embed("a")


def test_texts_that_are_cut_are_named(daemon: Daemon, embedder: cotensor.Embedder) -> None:
    long = "a crane " * 100
    texts = ["gulls"] * 300 + [long, "nets", long]
    with pytest.warns(RuntimeWarning, match=r"2 of 303, at positions 300, 302; truncate=False") as caught:
        rows = embedder.embed(texts)
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        detailed = embedder.embed_with_details(texts)
        embedder.embed(texts[:300])
        embedder.embed("gulls", truncate=False)
    assert np.array_equal(detailed.rows, rows)
    assert (detailed.truncated, detailed.tokens[300], len(detailed.tokens)) == ([300, 302], 64, 303)
    strict = cotensor.Embedder(BERT, store=daemon.connect(), truncate=False)
    for refuse in (lambda: embedder.embed(texts, truncate=False), lambda: strict.embed(texts)):
        with pytest.raises(cotensor.CotensorError, match=r"texts\[300\].*longer than the 64 tokens"):
            refuse()
    with pytest.warns(RuntimeWarning, match="cut"):
        strict.embed(texts, truncate=True)


def test_dimensions_that_the_model_does_not_declare_give_a_warning(daemon: Daemon) -> None:
    embedder = cotensor.Embedder(BERT, store=daemon.connect(), dimensions=4)
    with pytest.warns(RuntimeWarning, match="matryoshka_dimensions"):
        embedder.embed(TEXTS * 100)
    assert len(embedder.embed_with_details(TEXTS * 100).notices) == 1


def test_half_of_a_surrogate_pair_is_named(embedder: cotensor.Embedder) -> None:
    with pytest.raises(cotensor.InvalidError, match=r"texts\[1\].*character 2"):
        embedder.embed(["\u00e9", "a \ud800"])


def test_processes_share_one_model(daemon: Daemon) -> None:
    program = "import sys, cotensor; print(cotensor.Embedder(sys.argv[1], store=cotensor.connect(sys.argv[2])).embed('gulls')[0])"
    arguments = [sys.executable, "-c", program, str(BERT), str(daemon.socket)]
    programs = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    printed = {each.communicate()[0] for each in programs}
    assert len(printed) == 1 and all(each.returncode == 0 for each in programs)
    pids = {daemon.connect().start_models()[1] for _ in range(2)}
    assert len(pids) == 1
