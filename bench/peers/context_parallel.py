"""PyTorch's context_parallel with cuDNN on each GPU: causal prefill over torchrun's processes.

    torchrun --nproc-per-node 2 bench/peers/context_parallel.py --tokens 32768 131072

Prints one JSON line a number of tokens and a way to move keys and values, from rank 0: the median
time of the slowest rank, TFLOP/s per GPU (half of the square counts, as everywhere here), and the
largest error of some rows against plain attention in fp64. Needs PyTorch with CUDA and NCCL.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import _attention, context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[32768, 131072])
    parser.add_argument("--heads", type=int, default=32, help="of Q, and of K and V")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rotate", nargs="+", default=["allgather", "alltoall"])
    return parser.parse_args()


def slowest_ms(call, repeats):
    """Of each call: the time on the rank that took longest."""
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        dist.barrier()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    times = torch.tensor(times, device="cuda")
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return times.tolist()


def rows_of(rank, ranks, tokens):
    """(index in the local output, position): ends of the two runs that a rank holds."""
    run = tokens // (2 * ranks)
    first, second = rank * run, (2 * ranks - 1 - rank) * run
    return [(0, first), (run - 1, first + run - 1), (run, second), (2 * run - 1, second + run - 1)]


def worst_error(out, q, k, v, rank, ranks):
    """Of a few rows of the first head, in fp64."""
    worst = 0.0
    for index, position in rows_of(rank, ranks, q.shape[2]):
        keys, values = (x[0, 0, : position + 1].double() for x in (k, v))
        weights = torch.softmax(keys @ q[0, 0, position].double() / q.shape[3] ** 0.5, dim=0)
        worst = max(worst, (out[0, 0, index].double() - weights @ values).abs().max().item())
    return worst


def machine():
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, driver = subprocess.run(query, capture_output=True, text=True,
                                  check=True).stdout.splitlines()[0].split(", ")
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {"gpu": name, "driver": driver, "cuda": torch.version.cuda, "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version(), "nccl": nccl}


def measure(args, mesh, tokens, rotate):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same whole tensors everywhere, as context_parallel wants them
    whole = [torch.randn(1, args.heads, tokens, args.head_dim, device="cuda", dtype=torch.bfloat16)
             for _ in range(3)]
    q, k, v = (x.clone() for x in whole)
    _attention.set_rotate_method(rotate)
    with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2],
                          no_restore_buffers={q, k, v}), \
            sdpa_kernel(SDPBackend.CUDNN_ATTENTION), torch.no_grad():

        def call():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        call()
        error = torch.tensor(worst_error(call(), *whole, rank, ranks), device="cuda")
        times = slowest_ms(call, args.repeats)
    dist.all_reduce(error, op=dist.ReduceOp.MAX)
    ms = statistics.median(times)
    flop = 2 * args.heads * tokens * tokens * args.head_dim
    return {"bench": "context_parallel", "label": "torch " + rotate, "gpus": ranks, "tokens": tokens,
            "q_heads": args.heads, "kv_heads": args.heads, "head_dim": args.head_dim,
            "dtype": "bf16", "causal": True, "seconds": ms / 1e3, "least_seconds": min(times) / 1e3,
            "tflops_per_gpu": round(flop / ranks / ms / 1e9, 1), "error": error.item()}


def main():
    args = options()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=60),
                            device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    about = machine()
    for tokens in args.tokens:
        for rotate in args.rotate:
            record = measure(args, mesh, tokens, rotate)
            if dist.get_rank() == 0:
                print(json.dumps({**about, **record}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
