"""The CUDA kernels called from Python, on torch tensors: for tests/cuda and bench/gpu."""

import ctypes
import math

import torch

UNBOUNDED = (2**63 - 1) // 4
DTYPES = {torch.float16: 1, torch.bfloat16: 2}


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("stride", ctypes.c_int64 * 4)]


class Prefill(ctypes.Structure):
    _fields_ = [
        ("batch", ctypes.c_int64),
        ("q_tokens", ctypes.c_int64),
        ("kv_tokens", ctypes.c_int64),
        ("q_heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("dtype", ctypes.c_int),
        ("scale", ctypes.c_float),
        ("left_tokens", ctypes.c_int64),
        ("right_tokens", ctypes.c_int64),
        ("leaf_tokens", ctypes.c_int64),
        ("block_tokens", ctypes.c_int64),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", ctypes.c_void_p),
        ("lse_stride", ctypes.c_int64 * 3),
        ("q_lengths", ctypes.c_void_p),
        ("k_lengths", ctypes.c_void_p),
        ("q_start", ctypes.c_void_p),
        ("most_ctas", ctypes.c_int32),
    ]


def tensor(t):
    assert t.stride(3) == 1
    return Tensor(t.data_ptr(), (ctypes.c_int64 * 4)(*t.stride()))


class Library:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.skv__prefill_scratch_bytes.restype = ctypes.c_size_t
        self.processors = torch.cuda.get_device_properties(0).multi_processor_count

    def prefill(self, q, k, v, **options):
        """q [B][Tq][Hq][D], k and v [B][Tk][Hk][D]; a Call."""
        return Call(self, q, k, v, **options)


class Call:
    """One prepared launch; call it to enqueue. Results in .o and .lse."""

    def __init__(self, library, q, k, v, causal=False, window=(None, None), leaf=512, block=4096,
                 q_lengths=None, k_lengths=None, q_start=None, scale=None, most_ctas=0):
        batch, q_tokens, q_heads, dim = q.shape
        self.library, self.kept = library, (q, k, v)
        self.o = torch.full_like(q, float("nan"))
        self.lse = torch.full((batch, q_tokens, q_heads), float("nan"), device=q.device)
        q_lengths = q_lengths or [q_tokens] * batch
        k_lengths = k_lengths or [k.shape[1]] * batch
        q_start = q_start or [b - a for a, b in zip(q_lengths, k_lengths)]
        self.lengths = [torch.tensor(x, dtype=torch.int64, device=q.device)
                        for x in (q_lengths, k_lengths, q_start)]
        left = UNBOUNDED if window[0] is None else window[0]
        right = UNBOUNDED if window[1] is None else window[1]
        self.job = Prefill(
            batch=batch, q_tokens=q_tokens, kv_tokens=k.shape[1], q_heads=q_heads,
            kv_heads=k.shape[2], head_dim=dim, dtype=DTYPES[q.dtype],
            scale=scale or 1 / math.sqrt(dim), left_tokens=left,
            right_tokens=0 if causal else right, leaf_tokens=leaf, block_tokens=block,
            q=tensor(q), k=tensor(k), v=tensor(v), o=tensor(self.o), lse=self.lse.data_ptr(),
            lse_stride=(ctypes.c_int64 * 3)(*self.lse.stride()),
            q_lengths=self.lengths[0].data_ptr(), k_lengths=self.lengths[1].data_ptr(),
            q_start=self.lengths[2].data_ptr(), most_ctas=most_ctas)
        size = library.library.skv__prefill_scratch_bytes(ctypes.byref(self.job), library.processors)
        self.scratch = torch.zeros(size, dtype=torch.uint8, device=q.device)

    def __call__(self):
        status = self.library.library.skv__launch_prefill(
            ctypes.byref(self.job), self.library.processors,
            ctypes.c_void_p(self.scratch.data_ptr()),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if status:
            raise RuntimeError(f"launch failed with status {status}")
        return self.o


def reference(q, k, v, causal=False, window=(None, None), q_lengths=None, k_lengths=None,
              q_start=None, scale=None):
    """(O, LSE) in fp64, head by head; rows past a length are NaN."""
    batch, q_tokens, q_heads, dim = q.shape
    group = q_heads // k.shape[2]
    scale = scale or 1 / math.sqrt(dim)
    o = torch.full(q.shape, float("nan"), dtype=torch.float64, device=q.device)
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
            x.masked_fill_(~seen, float("-inf"))
            lse[b, :rows, h] = torch.logsumexp(x, 1) if keys else float("-inf")
            weights = torch.softmax(x, 1).nan_to_num_(0.0)
            o[b, :rows, h] = weights @ v[b, :keys, h // group].double()
    return o, lse
