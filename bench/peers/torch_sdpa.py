"""PyTorch's CPU scaled_dot_product_attention on the shape that bench/cpu/attention times.

Needs PyPI's torch, in any environment: pip install torch. Prints one JSON line a case, with the
median, so that it can stand beside the records of bench/cpu.
"""

import argparse
import json
import statistics
import time

import torch


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    return parser.parse_args()


def seconds(function, repeats, clock):
    """The median of `repeats` calls, after one to warm up."""
    function()
    times = []
    for _ in range(repeats):
        start = clock()
        function()
        times.append(clock() - start)
    return statistics.median(times)


def main():
    args = options()
    torch.set_num_threads(args.threads)
    clock = time.perf_counter if args.clock == "wall" else time.process_time
    shape = (1, args.heads, args.tokens, args.head_dim)
    q, k, v = (torch.randn(shape) for _ in range(3))
    for causal in (False, True):
        median = seconds(
            lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal),
            args.repeats,
            clock,
        )
        flop = 4 * args.heads * args.head_dim * args.tokens**2 / (2 if causal else 1)
        record = {
            "bench": "torch_sdpa",
            "torch": torch.__version__,
            "case": "prefill causal" if causal else "prefill full",
            "heads": args.heads,
            "head_dim": args.head_dim,
            "tokens": args.tokens,
            "threads": args.threads,
            "clock": args.clock,
            "seconds": round(median, 6),
            "gflops": round(flop / median / 1e9, 1),
        }
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
