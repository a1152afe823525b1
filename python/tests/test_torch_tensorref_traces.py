"""Timelines of sessions, and traces of programs."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

torch = pytest.importorskip("torch")

from cotensor.errors import InvalidError  # noqa: E402
from cotensor.tensorref import Recorder, Timeline, offload, simulated_device  # noqa: E402
from cotensor.tensorref.record import period  # noqa: E402

SCRIPT = """
import sys
import torch

layers = torch.nn.ModuleList([torch.nn.Linear(32, 32) for _ in range(4)])
x = torch.ones(2, 32)
torch.nn.Linear(32, 32)(x)                              # before the loop
for _ in range(int(sys.argv[1])):
    y = x
    for layer in layers:
        y = torch.relu(layer(y))
sys.exit(int(sys.argv[2]))
"""


def mlp(layers=4):
    return torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(layers)])


def test_a_timeline_is_saved_and_plotted(tmp_path):
    simulated_device()
    model, timeline = mlp(6), Timeline()
    with offload(model, "simulated", memory=4000) as session, torch.no_grad():
        session.use(timeline)
        for _ in range(4):
            model(torch.ones(2, 16))
        used = session.stats()["used_bytes"]
    timeline.save(tmp_path / "timeline.json")
    timeline.plot(tmp_path / "residency.svg")
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    operations = [event for event in events if event["ph"] == "X" and event["name"] == "linear"]
    assert len(operations) == 24 and operations[0]["args"]["uses"] == ["0.weight", "0.bias"]
    assert all(event["dur"] > 0 for event in operations)
    residency = timeline.residency()
    assert max(size for _, size in residency) <= 4000 and used in [size for _, size in residency]
    # The end of the session frees everything without a move.
    assert [event["args"]["bytes"] for event in events if event["ph"] == "C"] == [size for _, size in residency]
    assert ElementTree.parse(tmp_path / "residency.svg").getroot().tag.endswith("svg")


def test_a_recording_is_the_last_period(tmp_path):
    model = mlp()
    with torch.no_grad(), Recorder() as recorder:
        for _ in range(3):
            model(torch.ones(2, 16)).relu()
    trace = recorder.trace()
    assert trace["periods"] == 3
    assert [operation["uses"] for operation in trace["operations"]] == [[f"{n}.weight", f"{n}.bias"] for n in range(4)]
    assert [tensor["size_bytes"] for tensor in trace["tensors"]] == [1024, 64] * 4
    assert all(operation["compute_us"] > 0 and operation["workspace_bytes"] > 0 for operation in trace["operations"])
    with Recorder(speedup=10) as recorder:
        model(torch.ones(2, 16))
    for operation in recorder.trace()["operations"]:
        assert operation["cpu_us"] == pytest.approx(10 * operation["compute_us"], rel=0.1, abs=0.02)


def test_writes_of_programs_and_optimizers_are_recorded():
    model = mlp(2)
    x = torch.ones(2, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder() as recorder:
        for _ in range(3):
            model(x).sum().backward()
            optimizer.step()
            with torch.no_grad():
                model[0].weight[0] = 1
                torch.add(model[1].bias, 1, out=model[1].bias)
                torch._foreach_mul_([model[0].bias, model[1].bias], 0.5)
    trace = recorder.trace()
    assert trace["periods"] == 3
    found = [(operation["name"], operation.get("writes")) for operation in trace["operations"]]
    names = [name for name, _ in model.named_parameters()]
    assert found[:2] == [("linear", None)] * 2
    # The loss follows an operation, and the period may begin anywhere: the optimizer writes each parameter once.
    assert [writes for name, writes in found[2:-3]] == [[name] for name in names]
    assert found[-3:] == [("__setitem__", ["0.weight"]), ("add", ["1.bias"]), ("_foreach_mul_", ["0.bias", "1.bias"])]


def test_times_on_the_host_are_recorded(tmp_path):
    simulated_device()
    model = mlp().to("simulated")
    x = torch.ones(2, 16, device="simulated")
    dropped = torch.nn.Dropout()
    for host_times in (False, True):
        torch.manual_seed(0)
        with torch.no_grad(), Recorder(host_times=host_times) as recorder:
            results = [dropped(model(x)).add_(1) for _ in range(3)]
        trace = recorder.trace()
        assert trace["periods"] == 3 and len(trace["operations"]) == 4
        assert all(("cpu_us" in operation) is host_times for operation in trace["operations"])
        # The program is not changed, nor are its random numbers.
        torch.manual_seed(0)
        for result in results:
            assert torch.equal(result.cpu(), dropped(model(x)).add_(1).cpu())
    assert all(operation["cpu_us"] > 0 for operation in trace["operations"])
    model.cpu()
    with torch.no_grad(), Recorder() as recorder:
        model(torch.ones(2, 16))
    for operation in recorder.trace()["operations"]:
        assert operation["cpu_us"] == operation["compute_us"]


def test_compiled_code_is_recorded():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    compiled = torch.compile(model, backend="eager")
    with Recorder() as recorder:
        for _ in range(3):
            compiled(torch.ones(2, 4))
    trace = recorder.trace()
    assert [operation["name"] for operation in trace["operations"]] == ["linear", "linear"] and trace["periods"] == 3


def test_views_of_parameters_are_uses():
    layer = torch.nn.Linear(16, 16)
    with torch.no_grad(), Recorder() as recorder:
        torch.ones(2, 16) @ layer.weight.t()[:, :4]
    (operation,) = recorder.trace()["operations"]
    assert len(operation["uses"]) == 1 and recorder.trace()["tensors"][0]["size_bytes"] == 1024


def test_a_program_without_parameters_has_no_trace():
    with Recorder() as recorder:
        torch.ones(2) + 1
    with pytest.raises(InvalidError, match="no operation"):
        recorder.trace()
    with pytest.raises(InvalidError, match="speedup"):
        Recorder(speedup=0)


@pytest.mark.parametrize(
    ("keys", "expected"), [("abcbcbc", (2, 3)), ("abc", (3, 1)), ("aabaab", (3, 2)), ("xaaa", (1, 3)), ("a", (1, 1))]
)
def test_periods(keys, expected):
    assert period(list(keys)) == expected


def test_the_command_records_and_plans(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    cotensor = [sys.executable, "-m", "cotensor"]

    def run(*arguments):
        return subprocess.run([*cotensor, *arguments], cwd=tmp_path, capture_output=True, text=True)

    ran = run("trace", "-o", "trace.json", "--host-times", "script.py", "5", "0")
    assert ran.returncode == 0, ran.stderr
    assert "4 operations on 8 tensors" in ran.stderr and "5 periods" in ran.stderr
    planned = run("plan", "trace.json", "--budget", "9kB", "--bandwidth", "1GB/s", "--json")
    assert planned.returncode == 0, planned.stderr
    assert [row["name"] for row in json.loads(planned.stdout)["strategies"]] == ["flow", "genoa", "lru", "pinned", "cpu"]
    failed = run("trace", "-o", "other.json", "script.py", "2", "3")
    assert failed.returncode == 1 and "exit status: 3" in failed.stderr and (tmp_path / "other.json").exists()
    assert run("trace", "script.py").returncode == 2
