"""The prefill kernel against fp64, and its bits against themselves under changes that must not
matter. Ends with a count of failures; exit status 1 if there are any."""

import sys

import torch

sys.path.insert(0, "bench/gpu")
from binding import Library, reference  # noqa: E402

FAILURES = []


def say(name, good, text=""):
    print(("ok   " if good else "FAIL ") + name + " " + text, flush=True)
    if not good:
        FAILURES.append(name)


def tensors(batch, q_tokens, k_tokens, q_heads, kv_heads, dim, dtype, size=1.0):
    make = lambda tokens, heads: torch.randn(  # noqa: E731
        batch, tokens, heads, dim, device="cuda").mul_(size).to(dtype)
    return make(q_tokens, q_heads), make(k_tokens, kv_heads), make(k_tokens, kv_heads)


def plain(q, k, v, causal):
    """What the error rule compares with: softmax in fp32, weights and output in the inputs' dtype."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2).transpose(1, 2) for x in (k, v))
    x = (q.transpose(1, 2) @ k.transpose(2, 3)).float() * q.shape[3] ** -0.5
    if causal:
        rows, keys = x.shape[2:]
        x.masked_fill_(torch.ones_like(x, dtype=torch.bool).triu_(keys - rows + 1), float("-inf"))
    return (torch.softmax(x, 3).to(q.dtype) @ v).transpose(1, 2)


def check(library, name, q, k, v, bound=None, **options):
    """Two bounds: the error rule against a plain implementation where one is given, and LSE."""
    call = library.prefill(q, k, v, **options)
    call()
    torch.cuda.synchronize()
    masks = {key: options[key] for key in
             ("causal", "window", "q_lengths", "k_lengths", "q_start", "scale") if key in options}
    o, lse = reference(q, k, v, **masks)
    written = ~torch.isnan(lse)
    rounding = ((o.to(q.dtype) + 0.3 - 0.3).double() - o)[written].abs().max().item() \
        if written.any() else 0.0
    error = (call.o.double() - o)[written].abs().max().item() if written.any() else 0.0
    allowed = 2 * (bound if bound is not None else rounding) + 2 * rounding
    finite = written & torch.isfinite(lse)
    lse_error = ((call.lse.double() - lse).abs() / lse.abs().clamp(min=1))[finite]
    lse_error = lse_error.max().item() if finite.any() else 0.0
    empty = written & torch.isinf(lse)
    good = error <= allowed and lse_error <= 1e-5
    good &= bool((call.lse[empty] == float("-inf")).all()) and bool((call.o[empty] == 0).all())
    good &= bool(torch.isnan(call.o[~written].float()).all())
    say(name, good, f"error {error:.2e} of {allowed:.2e}, lse {lse_error:.1e}")
    return call


def same(name, a, b):
    bits = lambda x: x.contiguous().view(  # noqa: E731
        torch.int16 if x.element_size() == 2 else torch.int32)
    differ = int((bits(a) != bits(b)).sum())
    say(name, differ == 0, f"{differ} of {a.numel()} differ")


def accuracy(library, dim, dtype):
    for leaf, block in ((0, 0), (512, 512 if dim == 256 else 4096), (128, 128 if dim == 256 else 256)):
        for rows, keys in ((128, 128), (1, 1), (300, 300), (257, 1000), (64, 3000), (1100, 1100),
                           (129, 130)):
            for causal in (False, True):
                q, k, v = tensors(2, rows, keys, 8, 2, dim, dtype)
                o, _ = reference(q, k, v, causal=causal)
                bound = (plain(q, k, v, causal).double() - o).abs().max().item()
                check(library, f"d{dim} {dtype} leaf {leaf}/{block} {rows}x{keys} causal {causal}",
                      q, k, v, bound, causal=causal, leaf=leaf, block=block)


def masks(library, dim, dtype):
    check = lambda *a, **o: globals()["check"](  # noqa: E731
        *a, **({"leaf": 2048, "block": 2048, **o} if dim == 256 else o))
    q, k, v = tensors(3, 300, 700, 4, 4, dim, dtype)
    k[1, 333:], v[1, 333:] = float("nan"), float("nan")
    k[2, 128:], v[2, 128:] = float("nan"), float("nan")
    check(library, "lengths, poison past them", q, k, v, causal=True, q_lengths=[300, 120, 5],
          k_lengths=[700, 333, 128])
    check(library, "more queries than keys", q, k[:, :200].contiguous(), v[:, :200].contiguous(),
          causal=True, k_lengths=[200, 100, 0])
    q, k, v = tensors(1, 500, 900, 4, 2, dim, dtype)
    check(library, "window left 100", q, k, v, causal=True, window=(100, None))
    check(library, "window 70, 30", q, k, v, window=(70, 30))
    check(library, "window 300, leaf 128", q, k, v, window=(300, 0), leaf=128,
          block=128)
    check(library, "negative start", q, k, v, causal=True, q_start=[-200])
    q, k, v = tensors(1, 200, 2000, 4, 2, dim, dtype, 8.0)
    check(library, "large logits", q, k, v, causal=True, bound=2e-1)


def bits(library, dim, dtype):
    # head_dim 256 has no room for the state of a block besides the leaf's
    order = {"leaf": 2048, "block": 2048} if dim == 256 else {"leaf": 512, "block": 4096}
    small = {"leaf": 128, "block": 128 if dim == 256 else 256}
    q, k, v = tensors(2, 3000, 9000, 8, 2, dim, dtype)
    whole = library.prefill(q, k, v, causal=True, **order)
    whole()
    again = library.prefill(q, k, v, causal=True, **order)
    again(), again()
    same("the same again", whole.o, again.o)
    few = library.prefill(q, k, v, causal=True, most_ctas=7, **order)
    few()
    same("7 CTAs", whole.o, few.o)
    same("7 CTAs, lse", whole.lse, few.lse)
    part = library.prefill(q[1:, 1000:1777].contiguous(), k[1:], v[1:], causal=True, q_start=[7000],
                           **order)
    part()
    same("a chunk of queries", whole.o[1:, 1000:1777], part.o)
    one = library.prefill(q[1:, 1000:1001].contiguous(), k[1:], v[1:], causal=True, q_start=[7000],
                           **order)
    one()
    same("one query", whole.o[1:, 1000:1001], one.o)
    short = library.prefill(q[:1, :500].contiguous(), k[:1, :6500].contiguous(),
                            v[:1, :6500].contiguous(), causal=True, **order)
    short()
    same("fewer keys (prefix)", whole.o[:1, :500], short.o)
    free = library.prefill(q, k, v, causal=True, leaf=0)
    free()
    torch.cuda.synchronize()
    differ = int((whole.o != free.o).sum())
    say("one endless leaf differs (negative control)", differ > 0, f"{differ} differ")
    check(library, "9000 keys, pending nodes", q[:1, :200].contiguous(), k[:1], v[:1], **small)


def main():
    library = Library(sys.argv[1])
    torch.manual_seed(7)
    dims = [int(d) for d in sys.argv[2].split(",")]
    names = {"bf16": torch.bfloat16, "fp16": torch.float16}
    for dim in dims:
        for dtype in (names[name] for name in sys.argv[3].split(",")):
            accuracy(library, dim, dtype)
            masks(library, dim, dtype)
            bits(library, dim, dtype)
    print(f"{len(FAILURES)} failures")
    return 1 if FAILURES else 0


sys.exit(main())
