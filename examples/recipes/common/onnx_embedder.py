"""Embeddings as a program without Cotensor computes them: a session of onnxruntime in its own process."""

from __future__ import annotations

from pathlib import Path
from typing import List

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


class OnnxEmbedder:
    """Mean pooling over the tokens, and length 1."""

    def __init__(self, model: str) -> None:
        folder = Path(model)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        # Files of many models pad each text to a fixed length, such as 128: padding costs time, and would count in the mean.
        self.tokenizer.no_padding()
        self.session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
        self.inputs = [port.name for port in self.session.get_inputs()]

    def embed(self, texts: List[str]) -> np.ndarray:
        rows = []
        for text in texts:
            encoding = self.tokenizer.encode(text)
            given = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask, "token_type_ids": encoding.type_ids}
            hidden = self.session.run(None, {name: np.array([given[name]], np.int64) for name in self.inputs})[0]
            mean = hidden[0].mean(axis=0)
            rows.append(mean / np.linalg.norm(mean))
        return np.stack(rows)
