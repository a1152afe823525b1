"""Functions of every kind, for tests that call them from another process."""

from pathlib import Path

FUNCTIONS = '''
runs = {"cached": 0, "shared_run": 0}
released = threading.Event()

@provider.share
def add(a, b, *, c=0):
    """Adds numbers.

    More about it."""
    return a + b + c

@provider.share(name="identity")
def same(x):
    return x

@provider.share
def named(**names):
    return names

@provider.share()
def kind(x):
    return f"{type(x).__module__}.{type(x).__name__}"

@provider.share
def scale(x, factor):
    return {"scaled": [x * np.float32(factor)], "given": x}

@provider.share
def address(x):
    return x.__array_interface__["data"][0], bool(x.flags.writeable)

@provider.share
def fail(kind, message):
    raise getattr(__builtins__, kind, ValueError)(message)

@provider.share
def fail_oddly():
    class Odd(Exception):
        pass
    raise Odd("odd")

@provider.share
def not_found_inside():
    from cotensor import NotFoundError
    runs["inside"] = runs.get("inside", 0) + 1
    raise NotFoundError("within", field="name")

@provider.share
def ran(name):
    return runs.get(name, 0)

@provider.share(cache=True)
def cached(x):
    runs["cached"] += 1
    return x + 1

@provider.share(cache={"ttl": 3600, "capacity": 1})
def cached_one(x):
    runs["one"] = runs.get("one", 0) + 1
    return x

@provider.share(singleflight=True)
def shared_run(x):
    runs["shared_run"] += 1
    released.wait(60)
    return x

@provider.share
def release():
    released.set()

active = []
most = []

@provider.share(concurrency="serialized")
def alone():
    active.append(1)
    most.append(len(active))
    time.sleep(0.005)
    active.pop()
    return max(most)

@provider.share(managed=True)
def counter(start=0):
    class Counter:
        def __init__(self):
            self.count = start
        def more(self, by=1):
            self.count += by
            return self.count
        def __call__(self, x):
            return x * self.count
        def _hidden(self):
            return "hidden"
        def fail(self):
            raise KeyError("not there")
    return Counter()

@provider.share
def count_of(counter):
    return counter.count, type(counter).__name__

@provider.share
def die():
    os._exit(7)

@provider.share
def plain_object():
    return object()

@provider.share
def endless():
    x = []
    x.append(x)
    return x

@provider.share
def big():
    return 1 << 64

@provider.share
def numbered():
    return {1: 2}

@provider.share(timeout=0.05)
def limited():
    while True:
        check_cancelled()
        time.sleep(0.005)

stopped = threading.Event()

@provider.share
def long():
    try:
        while True:
            check_cancelled()
            time.sleep(0.005)
    finally:
        stopped.set()

@provider.share
def was_stopped():
    return stopped.wait(60)

@provider.share
def current():
    return current_call().function, current_call().client
'''


def exiting_provider(socket: Path) -> str:
    """A provider with a function that ends its process."""
    return f"""
import os
from cotensor.provider import SharedTensorProvider
provider = SharedTensorProvider(socket={str(socket)!r}, execution_mode="server")
@provider.share(name="exiting.exit")
def die():
    os._exit(7)
@provider.share(name="exiting.object", managed=True)
def make():
    return [1, 2]
print("ready", flush=True)
provider.serve()
"""
