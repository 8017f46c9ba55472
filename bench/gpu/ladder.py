"""Attention from the textbook to one kernel, on one GPU. The textbook's three kernels store S and P:
matrix product, softmax, matrix product (cuBLAS and PyTorch's softmax, in place). The others store
neither. Prints time, bytes (as accounted: each kernel reads its inputs once and writes its outputs
once; and as ncu counts them at the memory, where it is there and may) and FLOP per byte; with --out,
appends JSON lines. Without --tokens: 8192, and the largest T whose S and P the GPU holds."""

import argparse
import csv
import json
import math
import shutil
import statistics
import subprocess
import sys

import torch

sys.path.insert(0, "bench/gpu")
from binding import Library, reference  # noqa: E402
from prefill import machine  # noqa: E402

Q_HEADS, KV_HEADS, DIM = 32, 8, 128


def textbook(q, k, v, dtype):
    """q [T][Hq][D]; rows of a group against its KV head. S becomes P where it lies."""
    group, tokens = Q_HEADS // KV_HEADS, q.shape[0]
    q, k, v = (x.to(dtype) for x in (q, k, v))
    rows = q.view(tokens, KV_HEADS, group, DIM).permute(1, 2, 0, 3).reshape(KV_HEADS, -1, DIM)
    rows = rows * DIM ** -0.5  # before the product, so that no kernel only scales S
    keys, values = k.permute(1, 2, 0), v.transpose(0, 1).contiguous()
    scores = torch.empty(KV_HEADS, group * tokens, tokens, dtype=dtype, device="cuda")

    def run():
        torch.matmul(rows, keys, out=scores)
        torch.softmax(scores, -1, out=scores)
        o = torch.matmul(scores, values)
        return o.view(KV_HEADS, group, tokens, DIM).permute(2, 0, 1, 3).reshape(tokens, -1, DIM)

    return run


def textbook_bytes(tokens, width):
    s = Q_HEADS * tokens * tokens * width
    return 4 * s + width * tokens * DIM * 2 * (Q_HEADS + KV_HEADS)


def fused_bytes(tokens, width):
    return width * tokens * DIM * 2 * (Q_HEADS + KV_HEADS) + 4 * tokens * Q_HEADS


def fused(library, name, q, k, v, dtype, order):
    call = Library(library, name).attend(*(x.to(dtype)[None] for x in (q, k, v)), **order)
    return lambda: call()[0]


def rungs(args, q, k, v):
    """name: (call maker, bytes, element type)"""
    half, wide = torch.bfloat16, torch.float32
    order = {"leaf": 2048, "block": 8192}
    steps = {
        "textbook fp32": (lambda: textbook(q, k, v, wide), textbook_bytes, wide),
        "textbook bf16": (lambda: textbook(q, k, v, half), textbook_bytes, half),
    }
    for kernel, dtype in (("plain", wide), ("plain", half), ("prefill", half)):
        label = f"{kernel} {'fp32' if dtype == wide else 'bf16'}"
        steps[label] = (lambda kernel=kernel, dtype=dtype: fused(args.library, kernel, q, k, v,
                                                                 dtype, order), fused_bytes, dtype)
    return {name: step for name, step in steps.items() if not args.only or name == args.only}


def inputs(tokens):
    make = lambda heads: torch.randn(tokens, heads, DIM, device="cuda",  # noqa: E731
                                     dtype=torch.bfloat16)
    return make(Q_HEADS), make(KV_HEADS), make(KV_HEADS)


def error_of(q, k, v, o):
    rows = slice(q.shape[0] // 2, q.shape[0] // 2 + 16)
    heads = [0, Q_HEADS - 1]
    kv = [0, KV_HEADS - 1]
    expected, _ = reference(q[None, rows][:, :, heads], k[None][:, :, kv], v[None][:, :, kv])
    mine = o[None, rows][:, :, heads].double()
    return ((mine - expected).norm() / expected.norm()).item()


def microseconds(call, repeats):
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def counted_bytes(args, tokens, name):
    """DRAM traffic of one call, by ncu; None where it is not there or may not count."""
    if not shutil.which("ncu") or args.no_ncu:
        return None
    command = ["ncu", "--csv", "--profile-from-start", "off", "--metrics",
               "dram__bytes_read.sum,dram__bytes_write.sum", "--print-units", "base",
               sys.executable, sys.argv[0], "--library", args.library, "--tokens", str(tokens),
               "--only", name, "--once"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True,
                              timeout=120).stdout
    except (subprocess.SubprocessError, OSError):
        return None
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    values = [float(row["Metric Value"].replace(",", "")) for row in rows
              if row.get("Metric Name", "").startswith("dram__bytes")]
    return int(sum(values)) if values else None


def once(args):
    """For ncu: one call between the marks."""
    q, k, v = inputs(int(args.tokens))
    for make, _, _ in rungs(args, q, k, v).values():
        call = make()
        call()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        call()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def measure(args, tokens, record):
    q, k, v = inputs(tokens)
    flop = 4 * Q_HEADS * tokens * tokens * DIM
    for name, (make, accounted, dtype) in rungs(args, q, k, v).items():
        try:
            call = make()
            error = error_of(q, k, v, call())
            us = microseconds(call, args.repeats)
        except torch.OutOfMemoryError:
            print(f"{name:14} T {tokens:6}  does not fit")
            continue
        finally:
            call = None
            torch.cuda.empty_cache()
        data = accounted(tokens, dtype.itemsize)
        line = dict(record, bench="ladder", label=name, q_tokens=tokens, kv_tokens=tokens,
                    q_heads=Q_HEADS, kv_heads=KV_HEADS, head_dim=DIM, causal=False,
                    us=round(us, 1), tflops=round(flop / us / 1e6, 1), bytes=data,
                    flop_per_byte=round(flop / data, 1), error=float(f"{error:.3g}"))
        counted = counted_bytes(args, tokens, name)
        if counted:
            line |= {"dram_bytes": counted, "flop_per_dram_byte": round(flop / counted, 1)}
        print(f"{name:14} T {tokens:6}  {us / 1e3:9.2f} ms  {line['tflops']:6.1f} TFLOP/s  "
              f"{data / 1e9:8.3f} GB  {line['flop_per_byte']:8.1f} FLOP/byte  "
              f"{'dram %.3f GB' % (counted / 1e9) if counted else ''}  error {error:.1e}", flush=True)
        if args.out:
            with open(args.out, "a") as file:
                file.write(json.dumps(line) + "\n")


def largest():
    """S in bf16 and a little more."""
    free, _ = torch.cuda.mem_get_info()
    return int(math.sqrt((free - (4 << 30)) / (2 * Q_HEADS))) // 1024 * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--tokens", help="a number, or several with commas")
    parser.add_argument("--only", help="one rung")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-ncu", action="store_true")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out")
    args = parser.parse_args()
    torch.manual_seed(1)
    if args.once:
        return once(args)
    record = machine()
    tokens = [int(t) for t in args.tokens.split(",")] if args.tokens else [8192, largest()]
    for t in tokens:
        measure(args, t, record)
    return None


main()
