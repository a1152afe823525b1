"""The short form of `make parity`: small models with the graphs of torch's exporters, beside sentence-transformers."""

from __future__ import annotations

import json
import sys
from typing import Any, Dict

import pytest

pytest.importorskip("sentence_transformers")
pytest.importorskip("onnx")

from conftest import REPOSITORY  # noqa: E402

sys.path.append(str(REPOSITORY / "python" / "parity"))

import answers  # noqa: E402
import exports  # noqa: E402
import folders  # noqa: E402
import models  # noqa: E402
import rows  # noqa: E402
import texts  # noqa: E402

SIZE = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}
QWEN3 = {**models.QWEN3, **SIZE, "num_key_value_heads": 2, "head_dim": 8}
ROBERTA = {**models.roberta(32, 2, 4), "max_position_embeddings": 66}
MODELS: Dict[str, models.Model] = {
    "bert": models.Model("bert", "Bert", models.bert(32, 2, 4), "wordpiece", "mean", True, 64, inputs=models.TYPES),
    "xlm-roberta": models.Model("xlm-roberta", "XLMRoberta", ROBERTA, "sentencepiece", "cls", False, 64),
    "qwen3": models.Model("qwen3", "Qwen3", QWEN3, "last-token", "lasttoken", True, 64),
}


@pytest.fixture(scope="module", params=MODELS)
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a model, the texts, and sentence-transformers' embeddings."""
    source = folders.make_source(tmp_path_factory.mktemp("model") / "source", MODELS[request.param], seed=1)
    return source, *answers.reference(source, texts.texts)


@pytest.mark.parametrize("engine", ["rten", "ort"])
@pytest.mark.parametrize("layout", ["dynamo", "legacy"])
def test_embeddings_equal_those_of_sentence_transformers(measured: Any, layout: str, engine: str) -> None:
    source, listed, expected = measured
    folder = source.with_name(layout)
    if not folder.exists():
        exports.LAYOUTS[layout](source, folder)
    row = rows.measured(rows.Row("", "", layout, "fp32", engine), folder, listed, expected)
    assert row.passes() and not row.refused, row


def test_quantized_graph_equals_plain_onnxruntime_and_wrong_pooling_is_found(measured: Any) -> None:
    source, listed, expected = measured
    plain = source.with_name("legacy")
    if not plain.exists():
        exports.LAYOUTS["legacy"](source, plain)
    folder = exports.folder_of(source, source.with_name("int8"))
    graph = exports.variant(plain / "onnx" / "model.onnx", folder, "int8")
    answer = answers.by_cotensor(folder, listed, "ort")
    assert answers.difference(answer, answers.by_onnxruntime(source, graph, listed)) < rows.BOUND
    assert answers.difference(answer, expected) > rows.BOUND
    # The comparison is not one that every answer passes.
    (plain / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "max"}))
    row = rows.measured(rows.Row("", "", "legacy", "fp32", "rten"), plain, listed, expected)
    assert not row.passes() and not row.failed, row
