"""Embeddings as a program without Cotensor computes them: a session of onnxruntime in its own process."""

from __future__ import annotations

from pathlib import Path
from typing import List

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

#: The most texts of a run.
BATCH = 32


class OnnxEmbedder:
    """Mean pooling over the tokens, and length 1. Threads are onnxruntime's default."""

    def __init__(self, model: str) -> None:
        folder = Path(model)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        # Files of many models pad each text to a fixed length, such as 128: padding costs time, and would count in the mean.
        self.tokenizer.no_padding()
        self.session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
        self.inputs = [port.name for port in self.session.get_inputs()]

    def embed(self, texts: List[str]) -> np.ndarray:
        """One row for each text. Texts of similar length run together, padded to the longest of them."""
        encodings = self.tokenizer.encode_batch(texts)
        order = sorted(range(len(texts)), key=lambda at: len(encodings[at].ids))
        rows: List[np.ndarray] = [np.empty(0)] * len(texts)
        for first in range(0, len(order), BATCH):
            batch = order[first : first + BATCH]
            shape = len(batch), len(encodings[batch[-1]].ids)
            given = {name: np.zeros(shape, np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
            for row, at in enumerate(batch):
                count = len(encodings[at].ids)
                given["input_ids"][row, :count] = encodings[at].ids
                given["attention_mask"][row, :count] = 1
            hidden = self.session.run(None, {name: given[name] for name in self.inputs})[0]
            mask = given["attention_mask"][:, :, None].astype(np.float32)
            means = (hidden * mask).sum(axis=1) / mask.sum(axis=1)
            for at, mean in zip(batch, means):
                rows[at] = mean / np.linalg.norm(mean)
        return np.stack(rows)
