"""Prefill, ours against cuDNN and FlashAttention-2 through PyTorch, alternating in one run, in another
random order each round: a candidate that follows a cooler one runs up to 10 % faster. Prints a table;
with --out, appends JSON lines."""

import argparse
import json
import random
import statistics
import subprocess
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, "bench/gpu")
from binding import Library, reference  # noqa: E402

PEERS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}


def peer_call(name, q, k, v, causal):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))

    def run():
        with sdpa_kernel(PEERS[name]):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=True)

    return run


def graphed(call):
    """A CUDA graph of one call, for shapes that a launch from Python would dominate."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def replay():
        graph.replay()
        return call  # whose buffers the graph uses

    return replay


def seconds(call, count):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / count


def machine():
    query = "name,driver_version"
    text = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
                          capture_output=True, text=True, check=False).stdout.strip()
    gpu, _, driver = text.splitlines()[0].partition(", ")
    return {"gpu": gpu, "driver": driver, "cuda": torch.version.cuda, "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version()}


def candidates(args, q, k, v, causal):
    calls = {}
    for variant in args.variants.split(","):
        label, path, leaf, block = variant.split(":")
        calls[label] = Library(path).attend(q, k, v, causal=causal, leaf=int(leaf),
                                             block=int(block))
    for peer in args.peers.split(","):
        if peer and not (causal and q.shape[1] != k.shape[1]):  # theirs aligns top-left
            calls[peer] = peer_call(peer, q, k, v, causal)
    return calls


def relative_error(q, k, v, causal, output):
    """Of 64 rows of two heads."""
    rows = slice(q.shape[1] // 2, q.shape[1] // 2 + 64)
    group = q.shape[2] // k.shape[2]
    heads, kv = [0, q.shape[2] - 1], [0, (q.shape[2] - 1) // group]
    start = k.shape[1] - q.shape[1] + rows.start
    o, _ = reference(q[:, rows][:, :, heads], k[:, :, kv], v[:, :, kv], causal=causal,
                     q_start=[start] * q.shape[0])
    mine = output[:, rows][:, :, heads].double()
    return ((mine - o).norm() / o.norm()).item()


def measure(args, shape, causal, record):
    batch, rows, keys, q_heads, kv_heads, dim = shape
    dtype = getattr(torch, args.dtype)
    make = lambda t, h: torch.randn(batch, t, h, dim, device="cuda", dtype=dtype)  # noqa: E731
    q, k, v = make(rows, q_heads), make(keys, kv_heads), make(keys, kv_heads)
    calls = candidates(args, q, k, v, causal)
    flop = 4 * batch * q_heads * dim * (rows * keys - (rows * (rows - 1) // 2 if causal else 0))
    if causal and rows == keys:
        flop = 2 * batch * q_heads * dim * rows * keys
    errors, count = {}, max(1, int(2e-3 / (flop / 600e12)))
    for label in list(calls):
        try:
            out = calls[label]()
            out = out.transpose(1, 2) if label in PEERS else out
            errors[label] = relative_error(q, k, v, causal, out)
            if flop < 1e11:
                calls[label] = graphed(calls[label])
        except RuntimeError as problem:
            print(f"{label}: {str(problem)[:200]}")
            del calls[label]
    times = {label: [] for label in calls}
    for label in calls:
        seconds(calls[label], count)
    for _ in range(args.repeats):
        for label in random.sample(list(calls), len(calls)):
            times[label].append(seconds(calls[label], count))
    medians = {label: statistics.median(t) for label, t in times.items()}
    for label, median in medians.items():
        line = dict(record, bench="prefill", label=label, dtype=args.dtype, batch=batch,
                    q_tokens=rows, kv_tokens=keys, q_heads=q_heads, kv_heads=kv_heads,
                    head_dim=dim, causal=causal, us=round(median * 1e6, 2),
                    tflops=round(flop / median / 1e12, 1), error=float(f"{errors[label]:.3g}"))
        for peer in PEERS:
            if peer in medians and label not in PEERS:
                line["vs_" + peer] = round(medians[peer] / median, 4)
        if args.out:
            with open(args.out, "a") as file:
                file.write(json.dumps(line) + "\n")
    text = "  ".join(f"{label} {flop / t / 1e12:6.1f} ({errors[label]:.1e})"
                     for label, t in medians.items())
    print(f"d{dim} {rows}x{keys} {'causal' if causal else 'full  '}  {text}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", required=True, help="label:library:leaf:block,...")
    parser.add_argument("--peers", default="cudnn,fa2")
    parser.add_argument("--shapes", default="1x2048x2048x32x8x128,1x8192x8192x32x8x128,"
                        "1x32768x32768x32x8x128")
    parser.add_argument("--masks", default="full,causal")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out")
    args = parser.parse_args()
    torch.manual_seed(1)
    random.seed(1)
    record = machine()
    print(record)
    for shape in args.shapes.split(","):
        for mask in args.masks.split(","):
            measure(args, [int(x) for x in shape.split("x")], mask == "causal", record)


if __name__ == "__main__":
    main()
