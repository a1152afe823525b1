"""Weights of few bits: a trained decoder and a sentence encoder, quantized by the command and by onnxruntime's own quantizer.

    python benches/low_bit.py --command cotensor --decoder DIR --encoder DIR [--work DIR] [--only decoder|encoder]

DIR are the folders that scripts/decoder.sh and scripts/encoder.sh make; the former has the texts, too. All figures are those of
onnxruntime on texts that are held out, with the same method for all files: the `float32` matrix of the codes takes their place in
each product, so activations are `float32`. Fails if a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.quantization import matmul_nbits_quantizer as nbits
from tokenizers import Tokenizer

GRAPH = "onnx/model.onnx"
#: A row, and a row that has to be worse by the first figure. Mixed widths are named by their bits for a weight, with scales.
BOUNDS = [("mixed, 3.0", "3 bits"), ("mixed, 3.5", "3 bits"), ("mixed, 4.5", "4 bits"), ("mixed, 4.0", "onnxruntime, block 32")]
#: Those of onnxruntime's quantizer with 4 bits: block, without zero points, by HQQ. Its scales are `float32`.
PEERS: Dict[str, Tuple[int, bool, bool]] = {
    "onnxruntime, block 32": (32, True, False),
    "onnxruntime, block 64": (64, True, False),
    "onnxruntime, block 128": (128, True, False),
    "onnxruntime, block 32, zero points": (32, False, False),
    "onnxruntime, block 32, HQQ": (32, False, True),
}
#: Sentences of the encoder, samples, and the characters of one.
SENTENCES, SAMPLES, CHARACTERS, NEIGHBOURS = 500, 160, range(40, 400), 10


class Row(NamedTuple):
    size_bytes: int
    #: Of the held-out texts; the first decides.
    figures: List[float]
    #: Of the command's own report.
    reported: List[Optional[float]]


def unpacked(stored: np.ndarray, bits: int) -> np.ndarray:
    """The codes of groups of bytes; the lowest bits come first."""
    one_by_one = np.unpackbits(stored, axis=-1, bitorder="little")
    codes = one_by_one.reshape(*stored.shape[:-1], -1, bits).astype(np.int64)
    return (codes << np.arange(bits)).sum(-1)


def codes_of(stored: np.ndarray, bits: int) -> np.ndarray:
    if bits != 3:
        return unpacked(stored, bits)
    # A plane of the two lower bits, then one of the higher bits.
    low = stored.shape[-1] * 2 // 3
    return unpacked(stored[..., :low], 2) + 4 * unpacked(stored[..., low:], 1)


def size_bytes(tensor: onnx.TensorProto) -> int:
    # An array has a byte for each element of 4 bits.
    array, is_packed = numpy_helper.to_array(tensor), tensor.data_type in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4)
    return (array.size + 1) // 2 if is_packed else array.nbytes


def expanded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a product by a `float32` matrix in the place of each product by codes."""
    graph, constants = model.graph, {tensor.name: tensor for tensor in model.graph.initializer}
    nodes: List[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type != "MatMulNBits":
            nodes.append(node)
            continue
        given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        rows, bits, group = given["N"], given["bits"], given["block_size"]
        codes = codes_of(numpy_helper.to_array(constants[node.input[1]]).reshape(rows, -1, group * bits // 8), bits)
        middle: Any = 1 << (bits - 1)
        if len(node.input) > 3 and node.input[3]:
            points = numpy_helper.to_array(constants[node.input[3]])
            if points.dtype == np.uint8:
                points = codes_of(points.reshape(rows, -1), bits)[:, : codes.shape[1]]
            middle = points.reshape(rows, -1, 1)
        assert not any(node.input[4:]), "an index of groups or a bias"
        own = f"{node.output[0]}.expanded"
        parts = {"distances": (codes - middle).astype(np.float32), "groups": [rows, -1, 1], "rows": [rows, given["K"]]}
        for part, value in parts.items():
            graph.initializer.append(numpy_helper.from_array(np.array(value), f"{own}.{part}"))
        nodes += [
            helper.make_node("Reshape", [node.input[2], f"{own}.groups"], [f"{own}.scales"]),
            helper.make_node("Mul", [f"{own}.distances", f"{own}.scales"], [f"{own}.scaled"]),
            helper.make_node("Reshape", [f"{own}.scaled", f"{own}.rows"], [f"{own}.matrix"]),
            helper.make_node("Transpose", [f"{own}.matrix"], [f"{own}.transposed"], perm=[1, 0]),
            helper.make_node("MatMul", [node.input[0], f"{own}.transposed"], [node.output[0]]),
        ]
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def opened(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def inputs_of(session: onnxruntime.InferenceSession, ids: List[int]) -> Dict[str, np.ndarray]:
    """The inputs of a graph for one text: without a past."""
    of_text = {"input_ids": [ids], "attention_mask": [[1] * len(ids)], "position_ids": [list(range(len(ids)))]}
    past = {port.name: port.shape for port in session.get_inputs() if port.name not in of_text}
    found = {port.name: np.array(of_text[port.name]) for port in session.get_inputs() if port.name in of_text}
    return found | {name: np.zeros([1, shape[1], 0, shape[3]], np.float32) for name, shape in past.items()}


def peer(path: Path, block: int, symmetric: bool, is_hqq: bool) -> onnx.ModelProto:
    """The graph by onnxruntime's quantizer: its products, and its tables in the same groups."""
    model = onnx.load(path)
    hqq = nbits.HQQWeightOnlyQuantConfig(block_size=block, bits=4) if is_hqq else None
    for kind, config in [("MatMul", hqq), ("Gather", None)]:
        given = {"bits": 4, "block_size": block, "is_symmetric": symmetric, "op_types_to_quantize": (kind,)}
        quantizer = nbits.MatMulNBitsQuantizer(model, algo_config=config, **given)
        quantizer.process()
        model = quantizer.model.model
    return model


class Decoder:
    """Divergence from the full model (Kullback-Leibler, nats), equal first choices, perplexity."""

    name, heads = "decoder", ["divergence", "equal first choices", "perplexity"]
    reported = ["divergence", "top1"]
    widths, mixed = [2, 3, 4, 8], [3.0, 3.5, 4.0, 4.5, 5.0]

    def __init__(self, tokens: List[List[int]]) -> None:
        self.tokens = tokens
        self.full: List[np.ndarray] = []

    def measure(self, model: onnx.ModelProto) -> List[float]:
        session = opened(model)
        logits = [session.run(["logits"], inputs_of(session, ids))[0][0].astype(np.float64) for ids in self.tokens]
        scores = [row - np.logaddexp.reduce(row, axis=-1, keepdims=True) for row in logits]
        self.full = self.full or scores
        full, other = np.concatenate(self.full), np.concatenate(scores)
        divergence = (np.exp(full) * (full - other)).sum(-1).mean()
        next_ones = [row[np.arange(len(ids) - 1), ids[1:]] for row, ids in zip(scores, self.tokens)]
        equal = (full.argmax(-1) == other.argmax(-1)).mean()
        return [float(divergence), float(equal), float(np.exp(-np.concatenate(next_ones).mean()))]


class Encoder:
    """Distance to the embedding of the full model (1 - cosine), and how many of the ten nearest texts stay."""

    name, heads = "encoder", ["1 - cosine", "of ten neighbours"]
    reported = ["output_error", "cosine", "neighbours"]
    widths, mixed = [2, 3, 4, 8], [3.5, 4.0, 4.25, 4.5]

    def __init__(self, tokens: List[List[int]]) -> None:
        self.tokens = tokens
        self.full: Optional[np.ndarray] = None

    def measure(self, model: onnx.ModelProto) -> List[float]:
        session = opened(model)
        rows = np.stack([session.run(None, inputs_of(session, ids))[0][0].mean(0) for ids in self.tokens])
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        self.full = rows if self.full is None else self.full
        nearest, others = self.nearest(self.full), self.nearest(rows)
        stay = np.mean([len(set(one) & set(other)) for one, other in zip(nearest, others)])
        return [float(1 - (rows * self.full).sum(1).mean()), float(stay)]

    @staticmethod
    def nearest(rows: np.ndarray) -> np.ndarray:
        likeness = rows @ rows.T
        np.fill_diagonal(likeness, -2)
        return np.argsort(-likeness, axis=1)[:, :NEIGHBOURS]


def compare(kind: Any, folder: Path, command: str, work: Path, samples: List[str], texts: List[str]) -> Dict[str, Row]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    kind = kind([tokenizer.encode(text).ids for text in texts])
    rows: Dict[str, Row] = {}

    def add(name: str, model: onnx.ModelProto, reported: List[Optional[float]]) -> None:
        rows[name] = Row(sum(map(size_bytes, model.graph.initializer)), kind.measure(expanded(model)), reported)
        print(f"{kind.name}: {name}: {rows[name]}", file=sys.stderr, flush=True)

    add("full", onnx.load(folder / GRAPH), [])
    (work / "samples.txt").write_text("\n".join(samples))
    ways = {f"{bits} bits": ["--bits", str(bits)] for bits in kind.widths}
    ways |= {f"mixed, {bits}": ["--target-bits", str(bits)] for bits in kind.mixed}
    ways |= {f"{name}, rotated": [*options, "--rotate"] for name, options in ways.items() if name != "8 bits"}
    for name, options in ways.items():
        target = work / f"{kind.name}-{name.replace(' ', '')}"
        shutil.rmtree(target, ignore_errors=True)
        line = [command, "quantize", folder, "-o", target, *options, "--calibrate", work / "samples.txt", "--json"]
        done = subprocess.run(list(map(str, line)), check=True, stdout=subprocess.PIPE)
        report = json.loads(done.stdout)["graphs"][0]
        add(name, onnx.load(target / GRAPH), [report[field] for field in kind.reported])
    for name, peer_options in PEERS.items():
        add(name, peer(folder / GRAPH, *peer_options), [])
    return rows


def table(kind: Any, rows: Dict[str, Row]) -> str:
    lines = [["", "bits for a weight", "size of the weights", *kind.heads, *(f"the command: {field}" for field in kind.reported)]]
    lines.append(["---"] * len(lines[0]))
    for name, row in rows.items():
        sizes = [f"{32 * row.size_bytes / rows['full'].size_bytes:.2f}", f"{row.size_bytes / 1024:.0f} KiB"]
        values = [*row.figures, *(row.reported or [None] * len(kind.reported))]
        lines.append([name, *sizes, *("" if value is None else f"{value:.4g}" for value in values)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def sentences(path: Path) -> List[str]:
    found = re.split(r"(?<=[.:!?]) +", path.read_text().replace("\n", " "))
    return [text for text in dict.fromkeys(found) if len(text) in CHARACTERS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ["command", "decoder", "encoder"]:
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--work", type=Path, default=Path("target/low-bit"))
    parser.add_argument("--only", choices=["decoder", "encoder"])
    given = parser.parse_args()
    logging.getLogger(nbits.__name__).setLevel(logging.WARNING)
    onnxruntime.set_default_logger_severity(3)
    given.work.mkdir(parents=True, exist_ok=True)
    # The decoder was trained on all but the last. The encoder has seen none of them, and there are more sentences in `trained`.
    calibration, trained, held_out = (Path(given.decoder) / f"{name}.txt" for name in ["calibration", "trained", "held-out"])
    lines = [path.read_text().splitlines() for path in (calibration, held_out)]
    known = sentences(calibration)[:SAMPLES]
    missed = 0
    for kind, folder, samples, texts in [
        (Decoder, given.decoder, *lines),
        (Encoder, given.encoder, known, [text for text in sentences(trained) if text not in known][:SENTENCES]),
    ]:
        if given.only not in (None, kind.name):
            continue
        rows = compare(kind, Path(folder), given.command, given.work, samples, texts)
        print(f"\n{kind.name}: {len(texts)} texts held out, {len(samples)} samples\n\n{table(kind, rows)}\n")
        for better, worse in BOUNDS:
            if better in rows and rows[better].figures[0] >= rows[worse].figures[0]:
                missed += 1
                print(f"{kind.name}: {better} is not better than {worse}")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
