"""Decode, ours against cuDNN through PyTorch and a plain read of the same bytes, in one run, in another
random order each round. K and V rotate through more memory than the L2 cache holds; all candidates
run from CUDA graphs. Prints a table; with --out, appends JSON lines."""

import argparse
import ctypes
import json
import random
import statistics
import sys

import torch

sys.path.insert(0, "bench/gpu")
from binding import Library, reference  # noqa: E402
from prefill import PEERS, machine, peer_call, seconds  # noqa: E402

ROTATED_BYTES = 400 << 20  # several times the L2 cache


def graphed(calls):
    """A CUDA graph of all the calls; returns its replay."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph.replay


def reader(path, tensors):
    read, sink = ctypes.CDLL(path).skv_bench_read, torch.zeros(1, dtype=torch.int32, device="cuda")
    ctas = 4 * torch.cuda.get_device_properties(0).multi_processor_count

    def run():
        for x in tensors:
            read(ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(x.numel() * x.element_size()), ctas,
                 ctypes.c_void_p(sink.data_ptr()),
                 ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

    return run


def candidates(args, q, caches):
    """label: one call for each of the caches."""
    calls = {}
    for variant in args.variants.split(","):
        label, path, leaf, block = variant.split(":")
        kernel = Library(path, args.kernel)
        calls[label] = [kernel.attend(q, *kv[:2], leaf=int(leaf), block=int(block)) for kv in caches]
    for peer in args.peers.split(","):
        if peer:
            calls[peer] = [peer_call(peer, q, *kv[:2], False) for kv in caches]
    if args.reader:
        calls["read"] = [reader(args.reader, [kv[2]]) for kv in caches]
    return calls


def make_caches(batch, keys, kv_heads, dim, dtype):
    """K and V of each cache lie side by side, so that one read covers both."""
    each = 2 * batch * keys * kv_heads * dim
    count = max(1, min(64, -(-ROTATED_BYTES // (2 * each))))
    caches = []
    for _ in range(count):
        both = torch.randn(each, device="cuda", dtype=dtype)
        k, v = both.view(2, batch, keys, kv_heads, dim)
        caches.append((k, v, both))
    return caches


def relative_error(q, k, v, output):
    """Of the first and the last sequence's first and last heads."""
    group = q.shape[2] // k.shape[2]
    worst = 0.0
    for b in {0, q.shape[0] - 1}:
        for head in (0, q.shape[2] - 1):
            kv = slice(head // group, head // group + 1)
            o, _ = reference(q[b:b + 1, :, head:head + 1], k[b:b + 1, :, kv], v[b:b + 1, :, kv])
            mine = output[b:b + 1, :, head:head + 1].double()
            worst = max(worst, ((mine - o).norm() / o.norm()).item())
    return worst


def measure(args, shape, record):
    batch, rows, keys, q_heads, kv_heads, dim = shape
    dtype = getattr(torch, args.dtype)
    q = torch.randn(batch, rows, q_heads, dim, device="cuda", dtype=dtype)
    caches = make_caches(batch, keys, kv_heads, dim, dtype)
    calls = candidates(args, q, caches)
    size = 4 * batch * keys * kv_heads * dim
    errors, replays, times = {}, {}, {}
    for label, list_of_calls in calls.items():
        out = list_of_calls[0]()
        if label != "read":
            out = out.transpose(1, 2) if label in PEERS else out
            errors[label] = relative_error(q, *caches[0][:2], out)
        replays[label] = graphed(list_of_calls)
        times[label] = []
        seconds(replays[label], 1)
    count = max(1, int(1.5e-3 / (len(caches) * (size / 4e12 + 5e-6))))
    for _ in range(args.repeats):
        for label in random.sample(list(replays), len(replays)):
            times[label].append(seconds(replays[label], count) / len(caches))
    medians = {label: statistics.median(t) for label, t in times.items()}
    for label, median in medians.items():
        line = dict(record, bench="decode", label=label, dtype=args.dtype, batch=batch,
                    q_tokens=rows, kv_tokens=keys, q_heads=q_heads, kv_heads=kv_heads,
                    head_dim=dim, us=round(median * 1e6, 2), gbps=round(size / median / 1e9),
                    error=float(f"{errors.get(label, 0):.3g}"))
        for other in [*PEERS, "read"]:
            if other in medians and label not in (*PEERS, "read"):
                line["vs_" + other] = round(medians[other] / median, 4)
        if args.out:
            with open(args.out, "a") as file:
                file.write(json.dumps(line) + "\n")
    text = "  ".join(f"{label} {t * 1e6:.1f}us {size / t / 1e9:.0f} ({errors.get(label, 0):.0e})"
                     for label, t in medians.items())
    print(f"d{dim} {batch} x {rows} x {keys}, {q_heads}/{kv_heads} heads  {text}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", required=True, help="label:library:leaf:block,...")
    parser.add_argument("--kernel", default="decode")
    parser.add_argument("--peers", default="cudnn")
    parser.add_argument("--reader", help="library of bench/gpu/read.cu")
    parser.add_argument("--shapes", default="1x1x1024x32x8x128,1x1x8192x32x8x128,"
                        "1x1x32768x32x8x128,1x1x131072x32x8x128,1x1x1048576x32x8x128,"
                        "16x1x32768x32x8x128,64x1x8192x32x8x128,1x1x65536x32x8x64,"
                        "1x1x65536x16x4x256,1x8x32768x32x8x128")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out")
    args = parser.parse_args()
    torch.manual_seed(1)
    random.seed(1)
    record = machine()
    print(record)
    for shape in args.shapes.split(","):
        measure(args, [int(x) for x in shape.split("x")], record)


if __name__ == "__main__":
    main()
