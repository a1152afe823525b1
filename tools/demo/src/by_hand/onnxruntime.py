"""Repeats the recorded runs on onnxruntime, with one session per graph. Arguments: folder, threads.

Prints one JSON object: version, time_ms (starting with the import), pss_bytes (at the end, with open sessions) and max_abs_diff
(from the recorded outputs). The time excludes reading the inputs, which another program has prepared.
"""

import json
import sys
import time

import numpy

folder, threads = sys.argv[1], int(sys.argv[2])
with open(f"{folder}/plan.json") as plan:
    runs = json.load(plan)


def load(source):
    return numpy.fromfile(f"{folder}/{source['file']}", source["dtype"]).reshape(source["shape"])


prepared = [{name: load(source) for name, source in run["inputs"].items() if "file" in source} for run in runs]
last_use = {}
for number, run in enumerate(runs):
    for source in run["inputs"].values():
        if "run" in source:
            last_use[source["run"], source["output"]] = number

started = time.perf_counter()
import onnxruntime  # noqa: E402  The time includes the import.

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = threads
sessions = {}
live, answers = {}, []
for number, run in enumerate(runs):
    if run["graph"] not in sessions:
        sessions[run["graph"]] = onnxruntime.InferenceSession(run["graph"], options, providers=["CPUExecutionProvider"])
    session = sessions[run["graph"]]
    inputs = {name: live[source["run"], source["output"]] for name, source in run["inputs"].items() if "run" in source}
    inputs.update(prepared[number])
    for port in session.get_inputs():
        if port.type == "tensor(int64)":
            inputs[port.name] = inputs[port.name].astype(numpy.int64)
    for name, result in zip(run["outputs"], session.run(run["outputs"], inputs)):
        if last_use.get((number, name), -1) > number:
            live[number, name] = result
        if name in run["expected"]:
            answers.append((run["expected"][name], result))
    for key in [key for key in live if last_use[key] <= number]:
        del live[key]
time_ms = (time.perf_counter() - started) * 1e3

with open("/proc/self/smaps_rollup") as rollup:
    pss_kib = next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
different = max(float(abs(load(expected) - result).max()) for expected, result in answers)
print(
    json.dumps(
        {
            "version": onnxruntime.__version__,
            "time_ms": time_ms,
            "pss_bytes": pss_kib * 1024,
            "max_abs_diff": different,
        }
    )
)
