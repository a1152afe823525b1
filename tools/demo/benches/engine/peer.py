"""Runs one peer of the bench. Arguments: the peer, and what it runs.

Prints `ready VERSION`, or the reason why the peer is left out. Then it runs once for each line of standard input, and prints the
milliseconds.
"""

import sys
import time

kind, *arguments = sys.argv[1:]
try:
    import numpy

    if kind == "torch":
        import torch
        import transformers
    else:
        import onnxruntime
except ImportError as error:
    print(error, flush=True)
    sys.exit()


def serve(version, run):
    run(0)
    print("ready", version, flush=True)
    for number, _ in enumerate(sys.stdin, 1):
        started = time.perf_counter()
        more = run(number)
        print((time.perf_counter() - started) * 1e3, *(more or []), flush=True)


def encoder_inputs(model, number):
    if model == "bert-base":
        ids = 1000 + (number * 131 + numpy.arange(128) * 37) % 20000
        return {
            "input_ids": ids[None].astype(numpy.int64),
            "attention_mask": numpy.ones((1, 128), numpy.int64),
            "token_type_ids": numpy.zeros((1, 128), numpy.int64),
        }
    pixels = (numpy.arange(3 * 224 * 224) * 7 + number * 1009) % 255 / 127.5 - 1
    return {"pixel_values": pixels.astype(numpy.float32).reshape(1, 3, 224, 224)}


def session(path):
    """A session at the default settings."""
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def decode(decoder, step, hidden, count):
    """A plain greedy loop over values of onnxruntime, which are not copied between the runs. Returns the tokens."""
    cpu = onnxruntime.OrtValue.ortvalue_from_numpy

    def run(graph, names, given):
        taken = {port.name: given[port.name] for port in graph.get_inputs()}
        return dict(zip(names, graph.run_with_ort_values(names, taken)))

    def token(made):
        return int(made["logits"].numpy()[0, -1].argmax())

    names = [[port.name for port in graph.get_outputs()] for graph in (decoder, step)]
    given = {"encoder_hidden_states": cpu(hidden), "encoder_attention_mask": cpu(numpy.ones(hidden.shape[:2], numpy.int64))}
    given["input_ids"] = cpu(numpy.zeros((1, 1), numpy.int64))
    made = run(decoder, names[0], given)
    tokens = [token(made)]
    while True:
        given.update({name.replace("present", "past_key_values"): value for name, value in made.items()})
        if len(tokens) == count:
            return tokens
        given["input_ids"] = cpu(numpy.array([[tokens[-1]]], numpy.int64))
        given["cache_position"] = cpu(numpy.array([len(tokens)], numpy.int64))
        made = run(step, names[1], given)
        tokens.append(token(made))


if kind == "torch":
    model = arguments[0]
    torch.manual_seed(0)
    if model == "bert-base":
        module = transformers.BertModel(transformers.BertConfig()).eval()
    else:
        module = transformers.ViTModel(transformers.ViTConfig()).eval()

    def run_torch(number):
        given = {name: torch.from_numpy(value) for name, value in encoder_inputs(model, number).items()}
        with torch.inference_mode():
            module(**given)

    serve(torch.__version__, run_torch)
elif kind == "onnxruntime":
    model, path = arguments
    graph = session(path)
    serve(onnxruntime.__version__, lambda number: graph.run(["last_hidden_state"], encoder_inputs(model, number)) and None)
else:
    folder, features, count = arguments
    graphs = [session(f"{folder}/{name}.onnx") for name in ("decoder_model", "decoder_with_past_model")]
    hidden = numpy.fromfile(features, numpy.float32).reshape(1, -1, 768)
    serve(onnxruntime.__version__, lambda _: decode(*graphs, hidden, int(count)))
