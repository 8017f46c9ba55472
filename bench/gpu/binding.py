"""The CUDA kernels called from Python, on torch tensors: for tests/cuda and bench/gpu."""

import ctypes
import math

import torch

UNBOUNDED = (2**63 - 1) // 4
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("stride", ctypes.c_int64 * 4)]


class Run(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("sequence", "q_begin", "q_count", "row_begin")]
    _fields_ += [("owner", ctypes.c_int32)]


class JobNode(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("begin", "end", "token_offset")]


class Job(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in (
        "batch", "most_q_tokens", "most_k_tokens", "most_runs",
        "q_heads", "kv_heads", "head_dim", "value_head_dim")]
    _fields_ += [("dtype", ctypes.c_int), ("scale", ctypes.c_float), ("softcap", ctypes.c_float),
                 ("leaf_tokens", ctypes.c_int64), ("block_tokens", ctypes.c_int64),
                 ("free_order", ctypes.c_bool), ("left_tokens", ctypes.c_int64),
                 ("right_tokens", ctypes.c_int64), ("k_tokens", ctypes.POINTER(ctypes.c_int64)),
                 ("q_start", ctypes.POINTER(ctypes.c_int64)), ("q", Tensor), ("k", Tensor),
                 ("v", Tensor), ("kv_head_begin", ctypes.c_int64), ("kv_head_end", ctypes.c_int64),
                 ("runs", ctypes.POINTER(Run)), ("run_count", ctypes.c_int64),
                 ("nodes", ctypes.POINTER(JobNode)), ("node_count", ctypes.c_int64),
                 ("ranks", ctypes.c_int32), ("round_robin", ctypes.c_bool),
                 ("slices", ctypes.POINTER(ctypes.c_void_p)),
                 ("slice_rows", ctypes.POINTER(ctypes.c_int64)), ("resources", ctypes.c_void_p)]


class Finish(ctypes.Structure):
    _fields_ = [("o", Tensor), ("out_dtype", ctypes.c_int), ("lse", ctypes.c_void_p),
                ("lse_stride", ctypes.c_int64 * 3), ("sinks", ctypes.POINTER(ctypes.c_float)),
                ("bits", ctypes.c_void_p)]


class Device(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32)
                for name in ("multiprocessors", "major", "minor", "most_ctas")]


class Error(ctypes.Structure):  # skv__error_t
    _fields_ = [("status", ctypes.c_int), ("text", ctypes.c_char * 1024)]


class Kernel(ctypes.Structure):  # skv__attention_t
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("supports", ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.POINTER(Job), ctypes.POINTER(Device))),
        ("counter_bytes", ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.POINTER(Job),
                                           ctypes.POINTER(Device))),
        ("scratch_bytes", ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.POINTER(Job),
                                           ctypes.POINTER(Device))),
        ("launch", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Job), ctypes.POINTER(Finish),
                                    ctypes.POINTER(Device), ctypes.c_void_p, ctypes.c_void_p,
                                    ctypes.c_void_p, ctypes.POINTER(Error)))]


def tensor(t):
    assert t.stride(3) == 1
    return Tensor(t.data_ptr(), (ctypes.c_int64 * 4)(*t.stride()))


class Library:
    """One of the attention kernels ("prefill", "decode", "plain") of a shared library."""

    def __init__(self, path, name="prefill"):
        self.kernel = Kernel.in_dll(ctypes.CDLL(path), "skv__cuda_" + name)

    def attend(self, q, k, v, **options):
        """q [B][Tq][Hq][D], k and v [B][Tk][Hk][D]; a Call."""
        return Call(self.kernel, q, k, v, **options)


class Call:
    """One prepared launch; call it to enqueue. Results in .o and .lse; or, given `nodes` (a list of
    [begin, end) blocks), the states of each node in .states[n]: [rows * (dim + 2)] floats as a slice
    of kernels/job.h, rows numbered (sequence, query, head)."""

    def __init__(self, kernel, q, k, v, causal=False, window=(None, None), leaf=512, block=4096,
                 q_lengths=None, k_lengths=None, q_start=None, scale=None, softcap=0.0, sinks=None,
                 most_ctas=0, nodes=None, out_dtype=None, o=None):
        batch, q_tokens, q_heads, dim = q.shape
        value_dim = v.shape[3]
        self.kernel = kernel
        out_dtype = o.dtype if o is not None else out_dtype or q.dtype
        self.o = o if o is not None else torch.full(
            (batch, q_tokens, q_heads, value_dim), float("nan"), dtype=out_dtype, device=q.device)
        self.lse = torch.full((batch, q_tokens, q_heads), float("nan"), device=q.device)
        q_lengths = q_lengths or [q_tokens] * batch
        k_lengths = k_lengths or [k.shape[1]] * batch
        q_start = q_start or [b - a for a, b in zip(q_lengths, k_lengths)]
        left = UNBOUNDED if window[0] is None else window[0]
        right = UNBOUNDED if window[1] is None else window[1]
        begins = [sum(q_lengths[:s]) * q_heads for s in range(batch + 1)]
        runs = (Run * batch)(*[Run(s, 0, q_lengths[s], begins[s], 0) for s in range(batch)])
        block = block or 1 << 40
        whole = [(0, max(1, -(-max(k_lengths) // block)))]
        places = (JobNode * len(nodes or whole))(
            *[JobNode(b, e, b * block) for b, e in nodes or whole])
        self.states = [torch.full((begins[-1] * (value_dim + 2),), float("nan"), device=q.device)
                       for _ in nodes or []]
        slices = (ctypes.c_void_p * len(places))(*[s.data_ptr() for s in self.states])
        int64s = lambda values: (ctypes.c_int64 * len(values))(*values)  # noqa: E731
        self.job = Job(
            batch=batch, most_q_tokens=q_tokens, most_k_tokens=k.shape[1], most_runs=batch,
            q_heads=q_heads, kv_heads=k.shape[2], head_dim=dim, value_head_dim=value_dim,
            dtype=DTYPES[q.dtype], scale=scale or 1 / math.sqrt(dim), softcap=softcap,
            leaf_tokens=leaf or 1 << 40, block_tokens=block, free_order=not leaf, left_tokens=left,
            right_tokens=0 if causal else right, k_tokens=int64s(k_lengths),
            q_start=int64s(q_start), q=tensor(q), k=tensor(k), v=tensor(v), kv_head_begin=0,
            kv_head_end=k.shape[2], runs=runs, run_count=batch, nodes=places,
            node_count=len(places), ranks=1, round_robin=False, slices=slices,
            slice_rows=int64s([begins[-1]]))
        self.finish = Finish(
            o=tensor(self.o), out_dtype=DTYPES[out_dtype], lse=self.lse.data_ptr(),
            lse_stride=(ctypes.c_int64 * 3)(*self.lse.stride()),
            sinks=(ctypes.c_float * q_heads)(*sinks) if sinks else None, bits=None)
        properties = torch.cuda.get_device_properties(0)
        self.device = Device(properties.multi_processor_count, properties.major, properties.minor,
                             most_ctas)
        self.kept = (q, k, v, runs, places, slices)
        if not kernel.supports(self.job, self.device):
            raise RuntimeError("the kernel does not take this shape")
        room = lambda size: torch.zeros(  # noqa: E731
            max(256, size(self.job, self.device)), dtype=torch.uint8, device=q.device)
        self.counters, self.scratch = room(kernel.counter_bytes), room(kernel.scratch_bytes)
        self.scratch.fill_(0xff)

    def __call__(self):
        error = Error()
        status = self.kernel.launch(
            self.job, None if self.states else self.finish, self.device, self.counters.data_ptr(),
            self.scratch.data_ptr(), torch.cuda.current_stream().cuda_stream, error)
        if status:
            raise RuntimeError(f"launch failed with status {status}: {error.text.decode()}")
        return self.o


def reference(q, k, v, causal=False, window=(None, None), q_lengths=None, k_lengths=None,
              q_start=None, scale=None, softcap=0.0, sinks=None):
    """(O, LSE) in fp64, head by head; rows past a length are NaN."""
    batch, q_tokens, q_heads, dim = q.shape
    group = q_heads // k.shape[2]
    scale = scale or 1 / math.sqrt(dim)
    o = torch.full((*q.shape[:3], v.shape[3]), float("nan"), dtype=torch.float64, device=q.device)
    lse = torch.full(q.shape[:3], float("nan"), dtype=torch.float64, device=q.device)
    for b in range(batch):
        rows = q_lengths[b] if q_lengths else q_tokens
        keys = k_lengths[b] if k_lengths else k.shape[1]
        start = q_start[b] if q_start else keys - rows
        position = start + torch.arange(rows, device=q.device)[:, None]
        key = torch.arange(keys, device=q.device)[None, :]
        seen = torch.ones(rows, keys, dtype=torch.bool, device=q.device)
        if causal or window[1] is not None:
            seen &= key <= position + (0 if causal else window[1])
        if window[0] is not None:
            seen &= key >= position - window[0]
        for h in range(q_heads):
            x = q[b, :rows, h].double() @ k[b, :keys, h // group].double().T * scale
            if softcap:
                x = softcap * torch.tanh(x / softcap)
            x.masked_fill_(~seen, float("-inf"))
            values = v[b, :keys, h // group].double()
            if sinks:  # a key that all rows see, with value 0
                x = torch.cat((x, x.new_full((rows, 1), sinks[h])), 1)
                values = torch.cat((values, values.new_zeros(1, values.shape[1])))
            lse[b, :rows, h] = torch.logsumexp(x, 1) if x.shape[1] else float("-inf")
            o[b, :rows, h] = torch.softmax(x, 1).nan_to_num_(0.0) @ values
    return o, lse
