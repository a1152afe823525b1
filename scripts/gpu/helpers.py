"""The driver of a GPU by ctypes, in helper processes that evaluate expressions: for `questions.py`.

The functions are those of virtual memory management (VMM). A helper process evaluates the expressions that its parent sends, and dies with it.
"""

import contextlib
import ctypes as C
import json
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import time
from statistics import median

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ANSWER_SECONDS = 20                     # time limit
TRIES = 5                               # a time or a speed is the median of this many tries
HOST_SIZE = 512 * MIB                   # for copies from and to host memory
POSIX_FD, READ, READ_WRITE = 1, 1, 3    # CU_MEM_HANDLE_TYPE_POSIX_..., CU_MEM_ACCESS_FLAGS_PROT_...
LIBC = C.CDLL(None)
LIBC.mmap.restype, LIBC.mmap.argtypes = C.c_void_p, [C.c_void_p, C.c_size_t, C.c_int, C.c_int, C.c_int, C.c_long]
HOST_MEMORY = {                         # protection and flags of mmap; 0x8000 is MAP_POPULATE
    "anonymous": (mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x8000),
    "memfd shared": (mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | 0x8000),
    "memfd shared read-only": (mmap.PROT_READ, mmap.MAP_SHARED | 0x8000),
    "memfd private read-only": (mmap.PROT_READ, mmap.MAP_PRIVATE | 0x8000)}
REGISTER = {"pageable": None, "registered": 0, "registered READ_ONLY": 8}    # flags of cuMemHostRegister
PTX = b""".version 7.0\n.target sm_70\n.address_size 64
.visible .entry poke(.param .u64 address, .param .u64 value) {               // write 8 bytes
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [address];   ld.param.u64 %rd2, [value];   st.global.u64 [%rd1], %rd2;   ret; }
.visible .entry spin(.param .u64 nanoseconds) {                              // keep the threads busy
    .reg .b64 %rd<4>;   .reg .pred %p<2>;
    ld.param.u64 %rd1, [nanoseconds];   mov.u64 %rd2, %globaltimer;   add.u64 %rd2, %rd2, %rd1;
AGAIN: mov.u64 %rd3, %globaltimer;   setp.lt.u64 %p1, %rd3, %rd2;   @%p1 bra AGAIN;   ret; }
"""


# ---- The driver. The structures are those of cuda.h in CUDA 12 and 13. ----

def structure(**fields):
    return type("Structure", (C.Structure,), {"_fields_": list(fields.items())})


Location = structure(type=C.c_int, id=C.c_int)                               # CUmemLocation; type 1: device
AllocFlags = structure(compression=C.c_ubyte, rdma=C.c_ubyte, usage=C.c_ushort, reserved=C.c_ubyte * 4)
AllocationProp = structure(type=C.c_int, handle_types=C.c_int, location=Location, win32=C.c_void_p,
                           flags=AllocFlags)                                 # CUmemAllocationProp; type 1: pinned
AccessDesc = structure(location=Location, flags=C.c_int)                     # CUmemAccessDesc
IpcHandle = structure(reserved=C.c_ubyte * 64)                               # CUipcMemHandle, passed by value


class Failure(Exception):
    """The driver returned an error, or a helper process failed."""


def timed(function, *args):
    """Return the result of a call, and its milliseconds."""
    begin = time.monotonic()
    result = function(*args)
    return result, (time.monotonic() - begin) * 1e3


def pattern(size, seed):
    """Bytes that differ for each seed and in each MiB. A shorter pattern is a prefix of a longer one."""
    return (random.Random(seed).randbytes(MIB + 4099) * (size // MIB + 1))[:size]


class Gpu:
    """The driver in a helper process, with the segments that the process maps. gpu.cuX(...) calls cuX."""

    def __init__(self, init=True, context=True):
        self.lib, self.segments, self.module = C.CDLL(os.environ.get("COTENSOR_CUDA_DRIVER") or "libcuda.so.1"), [], None
        if init:
            self.cuInit(0)
            if not self.get("cuDeviceGetCount"):
                raise Failure("the driver reports no device")
        if init and context:
            self.cuCtxSetCurrent(self.get("cuDevicePrimaryCtxRetain", 0))

    def __getattr__(self, name):
        function = getattr(self.lib, name)

        def call(*args):                # integers travel as 64 bits; the driver reads the bits that it needs
            code = function(*(C.c_uint64(arg) if isinstance(arg, int) else arg for arg in args))
            if code:
                texts = C.c_char_p(), C.c_char_p()
                self.lib.cuGetErrorName(code, C.byref(texts[0]))
                self.lib.cuGetErrorString(code, C.byref(texts[1]))
                raise Failure(f"{name}: {code} " + ", ".join((text.value or b"?").decode() for text in texts))
        setattr(self, name, call)
        return call

    def get(self, name, *args, kind=C.c_uint64):
        """Call a function that writes its result through its first argument. Return the result."""
        result = kind()
        getattr(self, name)(C.byref(result), *args)
        return result.value

    def describe(self, device):
        name, uuid = C.create_string_buffer(256), (C.c_ubyte * 16)()
        self.cuDeviceGetName(name, 256, device)
        get_uuid = "cuDeviceGetUuid_v2" if hasattr(self.lib, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        getattr(self, get_uuid)(uuid, device)
        prop = C.byref(AllocationProp(1, POSIX_FD, Location(1, device)))
        granularity = [self.get("cuMemGetAllocationGranularity", prop, option) for option in (0, 1)]
        vmm, descriptors, read_only = (self.get("cuDeviceGetAttribute", number, device) for number in (102, 103, 113))
        return {"name": name.value.decode(), "uuid": bytes(uuid).hex(),
                "mib": self.get("cuDeviceTotalMem_v2", device) // MIB, "granularity_minimum_recommended": granularity,
                "vmm": vmm, "export_as_descriptor": descriptors, "register_read_only": read_only}

    def memory(self):
        free, total = C.c_size_t(), C.c_size_t()
        self.cuMemGetInfo_v2(C.byref(free), C.byref(total))
        return {"free": free.value, "used_mib": (total.value - free.value) // MIB}

    def set_access(self, address, size, flags):
        self.cuMemSetAccess(address, size, C.byref(AccessDesc(Location(1, 0), flags)), 1)

    def map(self, handle, size, flags):
        address = self.get("cuMemAddressReserve", size, 0, 0, 0)
        self.cuMemMap(address, size, 0, handle, 0)
        self.segments.append((handle, address, size))
        self.set_access(address, size, flags)

    def make(self, size, count=1, seed=None):
        """Create, export and map segments; fill segment i with pattern(size, seed + i). Return times, descriptors."""
        def export_all():
            return [self.get("cuMemExportToShareableHandle", handle, POSIX_FD, 0, kind=C.c_int) for handle in handles]
        prop = C.byref(AllocationProp(1, POSIX_FD, Location(1, 0)))
        handles, create = timed(lambda: [self.get("cuMemCreate", size, prop, 0) for _ in range(count)])
        fds, export = timed(export_all)
        _, map_own = timed(lambda: [self.map(handle, size, READ_WRITE) for handle in handles])
        for index, (_, address, _) in enumerate(self.segments if seed else []):
            self.cuMemcpyHtoD_v2(address, pattern(size, seed + index), size)
        return {"create": create, "export": export, "map": map_own}, fds

    def take(self, fds, size, flags=READ_WRITE):
        """Import and map descriptors. Return times."""
        def import_all():
            return [self.get("cuMemImportFromShareableHandle", fd, POSIX_FD) for fd in fds]
        handles, first = timed(import_all)
        again, second = timed(import_all)
        _, map_imported = timed(lambda: [self.map(handle, size, flags) for handle in handles])
        for handle in again:
            self.cuMemRelease(handle)
        return {"import": first, "import_again": second, "map_imported": map_imported}

    def intact(self, seed):
        """Return how many segments hold their pattern."""
        count = 0
        for index, (_, address, size) in enumerate(self.segments):
            host = C.create_string_buffer(size)
            self.cuMemcpyDtoH_v2(host, address, size)
            count += host.raw == pattern(size, seed + index)
        return count

    def drop(self):
        while self.segments:
            handle, address, size = self.segments.pop()
            self.cuMemUnmap(address, size)
            self.cuMemAddressFree(address, size)
            self.cuMemRelease(handle)

    def launch(self, name, *params, blocks=1, threads=1, stream=0):
        self.module = self.module or self.get("cuModuleLoadData", PTX)
        kernel = self.get("cuModuleGetFunction", self.module, name.encode())
        values = [C.c_uint64(param) for param in params]
        pointers = (C.c_void_p * len(values))(*map(C.addressof, values))
        self.cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, None)

    def legacy_export(self, size):
        handle = IpcHandle()
        self.cuIpcGetMemHandle(C.byref(handle), self.get("cuMemAlloc_v2", size))
        return bytes(handle).hex()

    def legacy_open(self, text):
        """Open and close a legacy IPC handle. Return the milliseconds of the open."""
        address, ms = timed(self.get, "cuIpcOpenMemHandle_v2", IpcHandle.from_buffer_copy(bytes.fromhex(text)), 1)
        self.cuIpcCloseMemHandle(address)
        return ms

    def device_copy(self, repeats):
        """Copy segment 0 to segment 1. Return GB/s, bytes read plus bytes written."""
        (_, source, size), (_, target, _) = self.segments
        stream, begin, end = (self.get(name, 1) for name in ("cuStreamCreate", "cuEventCreate", "cuEventCreate"))
        self.cuMemcpyDtoD_v2(target, source, size)
        self.cuEventRecord(begin, stream)
        for _ in range(repeats):
            self.cuMemcpyDtoDAsync_v2(target, source, size, stream)
        self.cuEventRecord(end, stream)
        self.cuEventSynchronize(end)
        return 2 * size * repeats / self.get("cuEventElapsedTime", begin, end, kind=C.c_float) / 1e6

    def host_map(self, kind, register, fd=-1):
        """Map host memory and register it with these flags (None: do not). Return milliseconds per GiB."""
        self.host = LIBC.mmap(None, HOST_SIZE, *HOST_MEMORY[kind], fd, 0)
        self.buffer = self.get("cuMemAlloc_v2", HOST_SIZE)
        if register is None:
            return "not asked"
        return timed(self.cuMemHostRegister_v2, self.host, HOST_SIZE, register)[1] * GIB / HOST_SIZE

    def follows_file(self, fd):
        """Return whether the host mapping shows a later write to its file."""
        os.pwrite(fd, os.urandom(64), 0)
        return C.string_at(self.host, 64) == os.pread(fd, 64, 0)

    def host_copy(self, repeats, to_host=False):
        """Copy between the host mapping and the device. Return the median GB/s, the begin and the end."""
        call = (self.cuMemcpyHtoD_v2, self.buffer, self.host, HOST_SIZE)
        if to_host:
            call = (self.cuMemcpyDtoH_v2, self.host, self.buffer, HOST_SIZE)
        timed(*call)
        begin = time.monotonic()
        return median(HOST_SIZE / timed(*call)[1] / 1e6 for _ in range(repeats)), begin, time.monotonic()

    def copy_and_spin(self, copy, spin_ms):
        """Run a copy to the device, and a kernel on all multiprocessors, in two streams. Return milliseconds."""
        copy_stream, kernel_stream = self.get("cuStreamCreate", 1), self.get("cuStreamCreate", 1)
        blocks = 2 * self.get("cuDeviceGetAttribute", 16, 0)       # 2 per multiprocessor
        begin = time.monotonic()
        if spin_ms:
            self.launch("spin", int(spin_ms * 1e6), blocks=blocks, threads=512, stream=kernel_stream)
        if copy:
            self.cuMemcpyHtoDAsync_v2(self.buffer, self.host, HOST_SIZE, copy_stream)
        self.cuCtxSynchronize()
        return (time.monotonic() - begin) * 1e3


# ---- Helper processes ----

def close(fds):
    while fds:
        os.close(fds.pop())


def send(sock, message, fds):
    data = json.dumps(message).encode()
    socket.send_fds(sock, [data], fds) if fds else sock.send(data)


def serve(number):
    """Evaluate the expressions that arrive on a socket until its other end closes."""
    sock, names = socket.socket(fileno=number), dict(globals(), held=[])
    while True:
        data, fds, _, _ = socket.recv_fds(sock, MIB, 256)
        if not data:
            return
        expression, values, in_fork = json.loads(data)
        names.update(values, fds=list(fds))
        if in_fork and os.fork():       # the child answers, unless it dies
            status = os.wait()[1]
            if status:
                send(sock, [None, f"child died with status {status}"], [])
            continue
        result, error, sent = None, None, []
        try:
            result = eval(expression, names)
            if isinstance(result, tuple) and isinstance(result[-1], list):   # a result and descriptors to send
                result, sent = result
        except Exception as failure:
            error = str(failure) if isinstance(failure, Failure) else f"{type(failure).__name__}: {failure}"
        send(sock, [result, error], sent)
        if in_fork:
            os._exit(0)
        close([*fds, *sent])            # an expression duplicates the descriptors that it keeps


class Helper(contextlib.AbstractContextManager):
    """A process that evaluates expressions. A `with` block kills it at the end."""

    def __init__(self, cuda=True, init=True, context=True):
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, os.path.abspath(__file__), str(theirs.fileno())]
        self.process, self.fds = subprocess.Popen(command, pass_fds=[theirs.fileno()]), []
        theirs.close()
        self.sock.settimeout(ANSWER_SECONDS)
        self.start_ms = timed(self.ask, f"(gpu := Gpu({init}, {context})) and None")[1] if cuda else None

    def kill(self, *_):
        close(self.fds)
        self.process.kill()
        self.process.wait()

    __exit__ = kill

    def ask(self, expression, fds=(), in_fork=False, **values):
        """Return the result. Descriptors that come with it are in self.fds until the next request."""
        close(self.fds)
        try:
            send(self.sock, [expression, values, in_fork], list(fds))
            data, self.fds, _, _ = socket.recv_fds(self.sock, MIB, 256)
        except socket.timeout:
            self.kill()
            raise Failure(f"no answer in {ANSWER_SECONDS} s, helper process killed")
        except OSError:
            data = b""
        if not data:
            raise Failure(f"helper process died with status {self.process.wait()}")
        result, error = json.loads(data)
        if error:
            raise Failure(error)
        return result

    def attempt(self, *args, **values):
        """Return the result ("ok" for none), or the error."""
        try:
            result = self.ask(*args, **values)
            return "ok" if result is None else result
        except Failure as error:
            return str(error)


def die_with_parent():
    """Let the kernel kill this process when its parent ends (PR_SET_PDEATHSIG)."""
    LIBC.prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    die_with_parent()
    serve(int(sys.argv[1]))
