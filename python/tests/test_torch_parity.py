"""The short form of `make parity`: small models with the graphs of an exporter, beside sentence-transformers."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
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

MODELS: Dict[str, models.Model] = {
    "bert": models.Model("bert", "Bert", models.bert(32, 2, 4), "wordpiece", "mean", True, 64, inputs=models.TYPES),
    # Pads on the left and takes the last token, before two Dense modules.
    "qwen3": models.Model(
        "qwen3",
        "Qwen3",
        {**models.QWEN3, **models.bert(32, 2, 4), "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 2},
        "last-token",
        "lasttoken",
        True,
        64,
        dense=(48, 24),
    ),
}
#: Every fifth text: all kinds of them, in one call, so that texts of different lengths are padded together.
STEP = 5


@pytest.fixture(scope="module", params=MODELS)
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a model, its graph by the exporter that traces, the texts, and sentence-transformers' embeddings."""
    source = folders.make_source(tmp_path_factory.mktemp("model") / "source", MODELS[request.param], seed=1)
    listed, expected = answers.reference(source, lambda *given: texts.texts(*given)[::STEP])
    folder = source.with_name("legacy")
    exports.LAYOUTS["legacy"](source, folder)
    return folder, listed, expected


@pytest.mark.parametrize("engine", ["rten", "ort"])
def test_embeddings_equal_those_of_sentence_transformers(measured: Any, engine: str) -> None:
    folder, listed, expected = measured
    row = rows.measured(rows.Row("", "", "legacy", "fp32", engine), folder, listed, expected)
    assert row.passes() and not row.refused, row


def test_wrong_pooling_is_found(measured: Any, tmp_path: Path) -> None:
    """The comparison is not one that every answer passes."""
    folder, listed, expected = measured
    wrong = exports.folder_of(folder, tmp_path / "wrong")
    shutil.copytree(folder / "onnx", wrong / "onnx", dirs_exist_ok=True)
    (wrong / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "max"}))
    row = rows.measured(rows.Row("", "", "legacy", "fp32", "rten"), wrong, listed, expected)
    assert not row.passes() and not row.failed, row
