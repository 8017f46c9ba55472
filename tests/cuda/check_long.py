"""The decode kernel where offsets pass 2^31 and 2^32 elements and sequences pass 65535: against fp64, and its
bits against the prefill kernel's, which check_prefill.py holds against fp64 elsewhere. Needs 40 GB of GPU
memory. Ends with a count of failures; exit status 1 if there are any.

check_long.py LIBRARY: e.g. build/gpu/libskv_cuda.so"""

import sys

import torch

sys.path.insert(0, "bench/gpu")
from binding import Library, reference  # noqa: E402
from checks import finish, same, say  # noqa: E402

ORDER = {"causal": True, "leaf": 2048, "block": 8192}


def randn(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def attend(library, *tensors):
    call = library.attend(*tensors, **ORDER)
    call()
    torch.cuda.synchronize()
    return call


def dense(decode, prefill):
    """One sequence whose last keys lie past element 2^32, which no key may miss."""
    keys = (1 << 22) + 3000
    q, k, v = randn(1, 2, 32, 128), randn(1, keys, 8, 128), randn(1, keys, 8, 128)
    k[0, -1, :, 0] = 60.0  # the last key counts in every row that sees it
    call, other = attend(decode, q, k, v), attend(prefill, q, k, v)
    same("4 million keys: O as prefill", call.o, other.o)
    same("4 million keys: LSE as prefill", call.lse, other.lse)
    for head in (0, 7):
        rows = slice(4 * head, 4 * head + 4)
        o, lse = reference(q[:, :, rows], k[:, :, head:head + 1], v[:, :, head:head + 1], causal=True)
        mine = call.o[:, :, rows].double()
        rounding = ((o.bfloat16().double() + 0.3 - 0.3) - o).abs().max().item()
        allowed = 2 * 2 ** -9 * o.abs().max().item() + 2 * rounding
        error = (mine - o).abs().max().item()
        lse_error = ((call.lse[:, :, rows].double() - lse).abs() / lse.abs().clamp(min=1)).max().item()
        say(f"4 million keys: KV head {head}", error <= allowed and lse_error <= 1e-5,
            f"error {error:.2e} of {allowed:.2e}, lse {lse_error:.1e}")


def strides(decode, prefill):
    room = torch.empty((1 << 32) + (1 << 28), dtype=torch.bfloat16, device="cuda")
    far, step = 1 << 32, (1 << 32) // 2990 // 8 * 8
    q, k, v = randn(2, 3, 8, 128), randn(2, 3000, 2, 128), randn(2, 3000, 2, 128)
    expected = attend(prefill, q, k, v)
    for name, stride in {"token": (1024, step, 256, 1), "head": (1 << 20, 128, far, 1),
                         "sequence": (far, 512, 128, 1)}.items():
        for which in (1, 2):
            parts = [q, k, v]
            parts[which] = torch.as_strided(room, parts[which].shape, stride).copy_(parts[which])
            call = attend(decode, *parts)
            same(f"{name} stride of {'qkv'[which]}", expected.o, call.o)


def many(decode, prefill):
    q, k, v = randn(65600, 1, 4, 64), randn(65600, 300, 1, 64), randn(65600, 300, 1, 64)
    call = attend(decode, q, k, v)
    same("65600 sequences as prefill", call.o, attend(prefill, q, k, v).o)
    last = slice(65590, 65600)
    o, _ = reference(q[last], k[last], v[last], causal=True)
    error = (call.o[last].double() - o).abs().max().item()
    say("65600 sequences: the last ten", error < 3e-2, f"error {error:.2e}")


def main():
    libraries = Library(sys.argv[1], "decode"), Library(sys.argv[1], "prefill")
    torch.manual_seed(7)
    for part in (dense, strides, many):
        part(*libraries)
        torch.cuda.empty_cache()
    return finish()


sys.exit(main())
