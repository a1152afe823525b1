"""A client of the Cotensor daemon in Python's standard library, written from docs/reference/protocol.md.

`python3 examples/clients/minimal.py SOCKET` publishes, reads, and calls `double` if a process offers it."""

import fcntl, json, math, mmap, os, socket, struct, sys

PROTOCOL = 3
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
LINUX = tuple(int(number) for number in os.uname().release.split("-")[0].split(".")[:2])
# Sandboxes refuse memfds without MFD_NOEXEC_SEAL, which is 8. Linux before 6.3 does not have it.
MEMFD = os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC | (8 if LINUX >= (6, 3) else 0)


class Failed(Exception):
    """The other end's error: {code, message, data}."""


class Connection:
    """Frames with descriptors on one socket, to the daemon or to a provider."""

    def __init__(self, stream):
        self.stream, self.id = stream, 0

    def send(self, message, fds=()):
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        frame = struct.pack("<IB3x", len(body), len(fds)) + body
        sent = socket.send_fds(self.stream, [frame], fds)
        self.stream.sendall(frame[sent:])

    def receive(self):
        """The next message and its descriptors, which come with the first byte of the header."""
        header, fds, _, _ = socket.recv_fds(self.stream, 8, 64, socket.MSG_WAITALL)
        if len(header) < 8:
            raise EOFError("the other end closed the connection")
        length, _ = struct.unpack("<IB3x", header)
        return json.loads(self.stream.recv(length, socket.MSG_WAITALL)), fds

    def call(self, method, params, fds=()):
        self.id += 1
        self.send({"id": self.id, "method": method, "params": params}, fds)
        message, fds = self.receive()
        while "method" in message:  # a notification, which may arrive before the answer
            self.notified(message["method"], message["params"], fds)
            message, fds = self.receive()
        if "error" in message:
            raise Failed(message["error"])
        return message["result"], fds

    def notified(self, method, params, fds):
        """This client opens no slabs and provides no functions, so the daemon's notifications do not concern it."""
        for fd in fds:
            os.close(fd)


class Daemon(Connection):
    def __init__(self, path):
        super().__init__(socket.socket(socket.AF_UNIX))
        self.stream.connect(path)
        self.segments = {}
        _, fds = self.call("session.hello", {"protocol": PROTOCOL, "client": "minimal"})
        os.close(fds[0])  # the index of names, which a client does not need

    def publish(self, name, dtype, shape, data):
        """Publishes bytes as a tensor and returns its id, leased to this session."""
        spec = {"name": name, "dtype": dtype, "shape": shape}
        reserved, _ = self.call("tensor.reserve", {"spec": spec, "holder": ""})
        fd = os.memfd_create(name, MEMFD)
        with open(fd, "wb") as memory:
            memory.write(data)
            memory.flush()
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            published, _ = self.call("tensor.publish", {"reservation": reserved["reservation"]}, [fd])
        return published["id"]

    def view(self, tensor, fds):
        """The elements of a leased tensor, without a copy: a view of the mapped segment."""
        segment, spec = tensor["segment"], tensor["spec"]
        if tensor.get("fd") or segment["id"] not in self.segments:
            fds = fds or self.call("segment.fd", {"segment": segment["id"]})[1]
            self.segments[segment["id"]] = mapped(fds[0], segment["bytes"])
        return window(self.segments[segment["id"]], tensor["offset_bytes"], spec["dtype"], spec["shape"])

    def get(self, name):
        tensor, fds = self.call("tensor.get", {"name": name})
        return tensor["id"], self.view(tensor, fds)

    def release(self, *ids):
        self.call("tensor.release", {"leases": [{"id": id} for id in ids]})


class Provider(Connection):
    """A process that offers functions, on a socket of its own."""

    def __init__(self, daemon, function):
        found, fds = daemon.call("function.lookup", {"name": function})
        super().__init__(socket.socket(fileno=fds[0]))
        self.daemon, self.name, self.slabs = daemon, found["provider"]["client"], {}

    def notified(self, method, params, fds):
        if method == "arena.open":
            self.slabs[params["slab"]] = mapped(fds[0], params["bytes"])

    def run(self, function, *args):
        """Calls a function. Tensors in the result are copied to lists and released."""
        result, _ = self.call("call", {"function": function, "args": list(args), "timeout_ms": 10_000})
        value = self.value(result["value"])
        if "taken" in result:
            self.send({"method": "result.taken", "params": {"taken": result["taken"]}})
        return value

    def value(self, value):
        if not isinstance(value, dict):
            return [self.value(each) for each in value] if isinstance(value, list) else value
        if "$tensor" in value:
            tensor, fds = self.daemon.call("tensor.lease", {"id": value["$tensor"]["id"]})
            elements = self.daemon.view(tensor, fds).tolist()
            self.daemon.release(tensor["id"])
            return elements
        if "$arena" in value:
            found = value["$arena"]
            elements = window(self.slabs[found["slab"]], found["offset"], found["dtype"], found["shape"]).tolist()
            self.send({"method": "arena.release", "params": {"ranges": [{k: found[k] for k in ("slab", "offset")}]}})
            return elements
        return {key: self.value(each) for key, each in value.items()}


def mapped(fd, length):
    memory = memoryview(mmap.mmap(fd, length, mmap.MAP_PRIVATE, mmap.PROT_READ))
    os.close(fd)
    return memory


def window(memory, offset, dtype, shape):
    code = {"float32": "f", "float64": "d", "int64": "q", "int32": "i", "uint8": "B"}[dtype]
    return memory[offset : offset + math.prod(shape) * struct.calcsize(code)].cast(code)


def main():
    daemon = Daemon(sys.argv[1])
    mine = daemon.publish("minimal/x", "float32", [3], struct.pack("<3f", 1, 2, 3))
    got, x = daemon.get("minimal/x")
    print("got", x.tolist())
    try:
        reference = {"$tensor": {"id": got, "dtype": "float32", "shape": [3]}}
        print("double", Provider(daemon, "double").run("double", reference))
    except Failed as error:
        print(error.args[0]["message"])
    daemon.release(mine, got)


if __name__ == "__main__":
    main()
