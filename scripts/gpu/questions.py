#!/usr/bin/env python3
"""Measure how processes share CUDA device memory, and whether the memory survives its producer.

The script calls the driver's virtual memory management (VMM) functions through ctypes. It needs Linux,
Python 3.9 or later and an NVIDIA driver. Its steps answer these questions:
  driver       Which driver, devices and allocation granularity are there?
  no_context   Do create, export, map and access work before a context exists?
  costs        How long do create, export, import and map take, and a legacy IPC open?
  survive_*    The producer is killed. Can a new process import the memory from a holder?
  read_only    Is PROT_READ enforced? Which processes does a forbidden write hurt?
  bad_handles  What do imports of wrong descriptors, and maps of wrong sizes, return?
  copy_*       How fast are copies: on the device, from host memory, from two processes?
  overlap      Does a host-to-device copy run beside a busy kernel?
  fork         Which errors does a forked child get?
  give_back    How soon is the memory of a killed process free?

    python3 questions.py                   all steps, under 4 minutes, or --seconds
    python3 questions.py --only survive    the steps whose names begin with "survive"

It prints one line per finding. After each it rewrites $OUT/gpu_questions.json (./gpu_questions.json without
OUT), so a killed run keeps its findings. Exit status: 0 every step that was begun has finished, 1 a part of
a step failed, 3 no usable driver. Measurements use device 0; CUDA_VISIBLE_DEVICES selects it. Each step is a child process
with a time limit. A step starts helper processes, which evaluate the expressions that the step sends. Only
helpers load libcuda.
"""
import argparse
import contextlib
import glob
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from helpers import (GIB, HOST_MEMORY, HOST_SIZE, KIB, MIB, READ, READ_WRITE, REGISTER, TRIES, Failure, Helper, close,
                     die_with_parent, timed)

STEP_SECONDS, TOTAL_SECONDS = 45, 220   # time limits of a step and, by default, of all
REPORT = os.path.join(os.environ.get("OUT") or ".", "gpu_questions.json")
SKIPPED = "skipped: no time left"       # status of a step that was not begun
STEP, FAILED = None, []                 # the step that this process runs, and its parts that failed


# ---- Findings ----

@contextlib.contextmanager
def report():
    """Load the JSON report, let the `with` block change it, and write it again in one piece."""
    with open(REPORT) as file:
        content = json.load(file)
    yield content
    with open(REPORT + ".part", "w") as file:
        json.dump(content, file, indent=1)
    os.replace(REPORT + ".part", REPORT)


@contextlib.contextmanager
def finding(title):
    """Record and print what the `with` block puts into a dictionary. A failure in the block ends only the block."""
    data = {}
    try:
        yield data
    except Exception as error:
        FAILED.append(title)
        data["FAILED"] = str(error) if isinstance(error, Failure) else repr(error)
    if not data:
        return
    data = json.loads(json.dumps(data), parse_float=lambda text: round(float(text), 4))
    with report() as content:
        content["steps"][STEP]["findings"].append({"title": title, **data})
    text = "; ".join(f"{key} {value}" for key, value in data.items())
    print(f"[{STEP}] {title}: {text}".replace("\n", " "), flush=True)


# ---- Steps ----

def driver():
    with Helper(cuda=False) as helper:
        state = helper.attempt("(gpu := Gpu(context=False)) and None")
        if state != "ok" and helper.process.poll() is None:    # a hang or a crash is not a missing driver
            with finding("no usable NVIDIA driver") as found:
                found["error"] = state
            sys.exit(3)
        with finding("driver") as found:
            found.update(start=state, kernel=os.uname().release)
            found["cuda"] = helper.ask("gpu.get('cuDriverGetVersion')")
            fields = "driver_version,persistence_mode,compute_mode"
            found["smi"] = subprocess.getoutput(f"timeout 15 nvidia-smi --query-gpu={fields} --format=csv,noheader")
        for device in range(helper.ask("gpu.get('cuDeviceGetCount')")):
            with finding(f"device {device}") as found:
                found.update(helper.ask("gpu.describe(device)", device=device))


def no_context():
    with finding("create, export, map, set access without a context") as found, Helper(context=False) as helper:
        found["answer"] = helper.attempt("gpu.make(2 * MIB)")


def costs():
    with Helper() as maker, Helper() as taker:
        with finding("load libcuda, init, context") as found:
            found["ms"] = maker.start_ms
        for size, count in [(2 * MIB, 1), (256 * MIB, 1), (4 * GIB, 1), (2 * MIB, 128)]:
            with finding(f"{count} x {size // MIB} MiB, milliseconds in all") as found:
                tries = []
                for _ in range(TRIES):
                    made = maker.ask("gpu.make(size, count)", size=size, count=count)
                    taken = taker.ask("gpu.take(fds, size)", maker.fds, size=size)
                    tries.append({**made, **taken, "drop": taker.ask("timed(gpu.drop)[1]")})
                    maker.ask("gpu.drop()")
                found.update({key: median(times[key] for times in tries) for key in tries[0]})
        with finding("legacy IPC, 256 MiB") as found:
            handle = maker.ask("gpu.legacy_export(256 * MIB)")
            found["open_ms"] = median(taker.ask("gpu.legacy_open(handle)", handle=handle) for _ in range(TRIES))


def maps_libcuda(process):
    """Return whether a process has libcuda mapped: only such a process can have a CUDA context."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/maps") as maps:
        return "libcuda.so" in maps.read()


def wait_without_cuda(seconds=5, limit=12):
    """Wait until no process has had libcuda mapped for some seconds. Return what was seen."""
    begin = since = time.monotonic()
    others = []
    while time.monotonic() < since + seconds:
        if time.monotonic() > begin + limit:
            return f"processes {others} kept libcuda mapped"
        others = [process for process in filter(str.isdigit, os.listdir("/proc")) if maps_libcuda(process)]
        since = time.monotonic() if others else since
        time.sleep(0.1)
    return f"no process had libcuda mapped for {seconds} s"


def used_mib():
    """Device memory in use as a new process sees it, with its own context."""
    with Helper() as new:
        return new.ask("gpu.memory()")["used_mib"]


def survive(title, device_files=False, pass_on=False, size=256 * MIB, count=1):
    """Kill the producer, wait until no process has a context, then import from the holder."""
    keep, lend = "held.extend(map(os.dup, fds))", "(None, [*map(os.dup, held)])"
    with finding(title) as found, Helper(cuda=False) as first, Helper(cuda=False) as second:
        found.update(verdict="FAIL", segments=count, used_mib_before=used_mib())
        holder = first
        with Helper() as producer:      # after its end only the holder has descriptors
            producer.ask("gpu.make(size, count, 100)", size=size, count=count)
            holder.ask(keep, producer.fds)
        if pass_on:
            first.ask(lend)
            second.ask(keep, first.fds)
            first.kill()
            holder = second
        paths = ["/dev/nvidiactl", "/dev/nvidia-uvm", *glob.glob("/dev/nvidia[0-9]*")] if device_files else []
        found["device_files"] = {path: holder.attempt("os.open(path, os.O_RDWR) and None", path=path) for path in paths}
        found["descriptor"] = holder.ask("os.readlink(f'/proc/self/fd/{held[0]}')")
        found["holder_has_libcuda"] = maps_libcuda(holder.process.pid)
        found["quiet"] = wait_without_cuda()
        with Helper() as consumer:
            found.update(context_ms=consumer.start_ms, used_mib_held=consumer.ask("gpu.memory()")["used_mib"])
            holder.ask(lend)
            found["import"] = consumer.attempt("gpu.take(fds, size)", holder.fds, size=size)
            found["intact"] = consumer.attempt("gpu.intact(100)")
        found["verdict"] = "PASS" if found["intact"] == count else "FAIL"
        holder.kill()
        found["used_mib_closed"] = used_mib()
        if found["used_mib_closed"] > found["used_mib_before"]:    # the driver may free memory a little later
            time.sleep(1)
            found["used_mib_closed_later"] = used_mib()


def read_only():
    writes = {"kernel": "gpu.launch('poke', gpu.segments[0][1], 0xBAD)",
              "copy": "gpu.cuMemcpyHtoD_v2(gpu.segments[0][1], b'BAD DATA', 8)",
              "memset": "gpu.cuMemsetD8_v2(gpu.segments[0][1], 0xBA, 8)"}

    def write(helper, how):             # the answers of the write, of the synchronization, and of a later call
        return [helper.attempt(call) for call in (writes[how], "gpu.cuCtxSynchronize()", "gpu.memory() and None")]

    with Helper() as owner, Helper() as bystander:
        owner.ask("gpu.make(2 * MIB, 1, 500)")
        fds = [os.dup(fd) for fd in owner.fds]
        bystander.ask("gpu.take(fds, 2 * MIB, READ)", fds)
        for how, access in [("kernel", "READ"), ("copy", "READ"), ("memset", "READ"),
                            ("kernel", "READ_WRITE"), ("copy", "READ_WRITE")]:     # the last two change the data
            with finding(f"consumer maps with {access}, writes by {how}") as found, Helper() as consumer:
                consumer.ask(f"gpu.take(fds, 2 * MIB, {access})", fds)
                found["access_flags"] = consumer.attempt("gpu.get('cuPointerGetAttribute', 16, gpu.segments[0][1])")
                found.update(readable=consumer.ask("gpu.intact(500)"), write_synchronize_later=write(consumer, how))
                found["owner_intact"] = owner.attempt("gpu.intact(500)")
                found["bystander_intact"] = bystander.attempt("gpu.intact(500)")
    with finding("producer sets its mapping to read, read and write, read") as found, Helper() as owner:
        owner.ask("gpu.make(2 * MIB, 1, 500)")
        change = "gpu.set_access(*gpu.segments[0][1:], flags)"
        found["answers"] = [owner.attempt(change, flags=flags) for flags in (READ, READ_WRITE, READ)]
        found.update(readable=owner.attempt("gpu.intact(500)"), write_synchronize_later=write(owner, "kernel"))


def memfd(size):
    fd = os.memfd_create("gpu_questions", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


def bad_handles():
    with Helper() as owner, contextlib.ExitStack() as takers:
        owner.ask("gpu.make(4 * MIB, 1, 700)")
        null = os.open("/dev/null", os.O_RDWR)
        cases = [("/dev/null as 2 MiB", [null], 2 * MIB), ("closed descriptor as 2 MiB", [], 2 * MIB)]
        for size in (4 * KIB, 2 * MIB, 64 * MIB):
            cases.append((f"memfd of {size // KIB} KiB as 2 MiB", [memfd(size)], 2 * MIB))
        for size in (2 * MIB, 8 * MIB, 4 * MIB + 4 * KIB):
            cases.append((f"segment of 4 MiB as {size // KIB} KiB", owner.fds, size))
        taker = takers.enter_context(Helper())
        for title, fds, size in cases:
            with finding(title) as found:
                taker = taker if taker.process.poll() is None else takers.enter_context(Helper())
                found["take"] = taker.attempt("gpu.take(fds or [987], size, READ)", fds, size=size)
                found["intact"] = taker.attempt("gpu.intact(700)")
                taker.attempt("gpu.drop()")
                found["still_works"] = taker.attempt("gpu.take(fds, 4 * MIB) and gpu.intact(700) == 1", owner.fds)
                taker.attempt("gpu.drop()")


def copy_device():
    for size in (256 * MIB, GIB):
        with finding(f"device to device, segments of {size // MIB} MiB") as found, Helper() as helper:
            helper.ask("gpu.make(size, 2)", size=size)
            rates = [helper.ask("gpu.device_copy(repeats)", repeats=16 * GIB // size) for _ in range(TRIES)]
            found["gb_per_s_read_plus_written"] = median(rates)


def copy_host():
    for kind in HOST_MEMORY:
        with Helper() as helper:
            for name, flags in REGISTER.items():
                with finding(f"{kind}, {name}") as found:
                    fds = [] if kind == "anonymous" else [memfd(HOST_SIZE)]
                    register = helper.attempt("gpu.host_map(kind, flags, *fds)", fds, kind=kind, flags=flags)
                    found["register_ms_per_gib"] = register
                    found["to_device_gb_per_s"] = helper.ask("gpu.host_copy(TRIES)")[0]
                    if fds:
                        found["follows_file"] = helper.ask("gpu.follows_file(*fds)", fds)
                    if "read-only" not in kind and "READ_ONLY" not in name:
                        found["to_host_gb_per_s"] = helper.ask("gpu.host_copy(TRIES, True)")[0]
                    close(fds)


def copy_two():
    with finding("two processes register one memfd") as found, Helper() as one, Helper() as two:
        fd = memfd(HOST_SIZE)
        register = "gpu.host_map('memfd shared', 0, *fds)"
        found["register_ms_per_gib"] = [helper.attempt(register, [fd]) for helper in (one, two)]
        found["alone_gb_per_s"] = [helper.ask("gpu.host_copy(20)")[0] for helper in (one, two)]
        with ThreadPoolExecutor() as threads:
            rates, begins, ends = zip(*threads.map(lambda helper: helper.ask("gpu.host_copy(60)"), (one, two)))
        found.update(at_once_gb_per_s=rates, seconds_together=min(ends) - max(begins))


def overlap():
    for register in ("registered", "pageable"):
        with finding(f"copy of {register} memory beside a kernel") as found, Helper() as helper:
            def run(copy, spin_ms):
                call = "gpu.copy_and_spin(copy, spin_ms)"
                return median(helper.ask(call, copy=copy, spin_ms=spin_ms) for _ in range(TRIES))
            helper.ask("gpu.host_map('anonymous', flags)", flags=REGISTER[register])
            run(True, 0.001)            # the first launch compiles the kernel
            copy_ms = run(True, 0)
            kernel_ms, both_ms = run(False, copy_ms), run(True, copy_ms)
            hidden = (copy_ms + kernel_ms - both_ms) / min(copy_ms, kernel_ms)
            found.update(copy_ms=copy_ms, kernel_ms=kernel_ms, both_ms=both_ms, hidden_part_of_shorter=hidden)


def fork():
    calls = {"init": "gpu.cuInit(0)", "context": "gpu.get('cuDevicePrimaryCtxRetain', 0) and None",
             "init and context": "gpu.cuInit(0) or gpu.get('cuDevicePrimaryCtxRetain', 0) and None",
             "memory": "gpu.memory() and None", "create": "gpu.make(2 * MIB) and None"}
    starts = {"loading libcuda": {"init": False}, "init": {"context": False}, "init and context": {}}
    for title, start in starts.items():
        with finding(f"fork after {title}") as found, Helper(**start) as helper:
            found["child"] = {name: helper.attempt(call, in_fork=True) for name, call in calls.items()}
            found["parent_init_again"] = helper.attempt("gpu.cuInit(0)")


def give_back():
    with Helper() as observer:
        for size in (256 * MIB, min(16 * GIB, observer.ask("gpu.memory()")["free"] // 2)):
            with finding(f"a process with {size // MIB} MiB is killed") as found, Helper() as victim:
                victim.ask("gpu.cuMemsetD8_v2(gpu.get('cuMemAlloc_v2', size), 1, size)", size=size)
                target = observer.ask("gpu.memory()")["free"] + size * 9 // 10
                begin = time.monotonic()
                found["reaped_ms"] = timed(victim.kill)[1]
                while observer.ask("gpu.memory()")["free"] < target:
                    if time.monotonic() > begin + 10:
                        raise Failure("the memory is not free after 10 s")
                found["free_ms"] = (time.monotonic() - begin) * 1e3


STEPS = {
    "driver": driver, "no_context": no_context, "costs": costs,
    "survive_fd": lambda: survive("(a) the holder keeps the descriptor only"),
    "survive_files": lambda: survive("(b) the holder also keeps the device files open", device_files=True),
    "survive_passed_on": lambda: survive("(c) a second holder takes over, the first is killed", pass_on=True),
    "survive_20": lambda: survive("(d) 20 segments of 64 MiB", size=64 * MIB, count=20),
    "read_only": read_only, "bad_handles": bad_handles, "copy_device": copy_device, "copy_host": copy_host,
    "copy_two": copy_two, "overlap": overlap, "fork": fork, "give_back": give_back}


# ---- The main process ----

def run_step(name, seconds):
    """Run a step in a child process and return its status. Afterwards its helpers are killed too."""
    if seconds < 3:
        return SKIPPED
    command = [sys.executable, os.path.abspath(__file__), "--step", name]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        code = process.wait(timeout=seconds)
        return {0: "finished", 1: "failed", 3: "no usable driver"}.get(code, f"crashed with status {code}")
    except subprocess.TimeoutExpired:
        return f"timed out after {seconds:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)                # a process stuck in the kernel stays behind


def main(prefix, seconds):
    begin, statuses = time.monotonic(), []
    os.makedirs(os.path.dirname(REPORT), exist_ok=True)
    with open(REPORT, "w") as file:
        json.dump({"started": time.strftime("%Y-%m-%d %H:%M:%S"), "complete": False, "steps": {}}, file)
    for name in [name for name in STEPS if name == "driver" or name.startswith(prefix)]:
        with report() as content:
            content["steps"][name] = {"status": "running", "findings": []}
        statuses.append(run_step(name, min(STEP_SECONDS, begin + seconds - time.monotonic())))
        with report() as content:
            content["steps"][name]["status"] = statuses[-1]
            content["seconds"] = round(time.monotonic() - begin, 1)
        if statuses[-1] == "no usable driver":
            return 3
        if statuses[-1] != "finished":
            print(f"[{name}] {statuses[-1].upper()}", flush=True)
    with report() as content:
        content["complete"] = True
    print(f"gpu_questions: {len(statuses)} steps in {time.monotonic() - begin:.0f} s; results in {REPORT}")
    return 0 if set(statuses) <= {"finished", SKIPPED} else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="PREFIX", help="run only the steps whose names begin with PREFIX")
    parser.add_argument("--seconds", type=float, default=TOTAL_SECONDS, help="when no further step is begun")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        die_with_parent()
        STEP = options.step
        with finding("step"):
            STEPS[STEP]()
        sys.exit(1 if FAILED else 0)
    else:
        sys.exit(main(options.only, options.seconds))
