"""The decode kernel against fp64, and its bits against the other kernels' and themselves under changes
that must not matter. Ends with a count of failures; exit status 1 if there are any.

check_decode.py LIBRARY [DIMS [DTYPES]]: e.g. build/gpu/libskv_cuda.so 64,128 bf16"""

import sys

import torch

sys.path.insert(0, "bench/gpu")
from binding import Library, reference  # noqa: E402
from checks import MASKS, finish, same, say  # noqa: E402


def tensors(batch, q_tokens, k_tokens, q_heads, kv_heads, dim, dtype, value_dim=None, size=1.0):
    make = lambda tokens, heads, d: torch.randn(  # noqa: E731
        batch, tokens, heads, d, device="cuda").mul_(size).to(dtype)
    return (make(q_tokens, q_heads, dim), make(k_tokens, kv_heads, dim),
            make(k_tokens, kv_heads, value_dim or dim))


def textbook_error(q, k, v):
    """Of a causal softmax in fp32 with weights and output in the inputs' dtype."""
    exact, _ = reference(q, k, v, causal=True)
    group, rows, keys = q.shape[2] // k.shape[2], q.shape[1], k.shape[1]
    k, v = (x.repeat_interleave(group, 2).transpose(1, 2) for x in (k, v))
    x = (q.transpose(1, 2) @ k.transpose(2, 3)).float() * q.shape[3] ** -0.5
    x.masked_fill_(torch.ones_like(x, dtype=torch.bool).triu_(keys - rows + 1), float("-inf"))
    mine = (torch.softmax(x, 3).nan_to_num_(0.0).to(q.dtype) @ v).transpose(1, 2)
    return (mine.double() - exact).abs().max().item()


def check(library, name, q, k, v, bound=None, **options):
    """The error rule of docs/architecture.md: `bound` is the error of a plain implementation, by default
    what rounding weights to the inputs' dtype allows."""
    call = library.attend(q, k, v, **options)
    call()
    torch.cuda.synchronize()
    o, lse = reference(q, k, v, **{key: options[key] for key in MASKS if key in options})
    written = ~torch.isnan(lse)
    out = call.o.dtype
    rounding = ((o.to(out).double() + 0.3 - 0.3) - o)[written].abs().max().item()
    if bound is None:
        bound = (2 ** -9 if q.dtype == torch.bfloat16 else 2 ** -12) * o[written].abs().max().item()
    error = (call.o.double() - o)[written].abs().max().item()
    allowed = 2 * bound + 2 * rounding
    finite = written & torch.isfinite(lse)
    lse_error = ((call.lse.double() - lse).abs() / lse.abs().clamp(min=1))[finite]
    lse_error = lse_error.max().item() if finite.any() else 0.0
    empty = written & torch.isinf(lse)
    good = error <= allowed and lse_error <= 1e-5
    good &= bool((call.lse[empty] == float("-inf")).all()) and bool((call.o[empty] == 0).all())
    good &= bool(torch.isnan(call.o[~written].float()).all())
    good &= bool((call.counters == 0).all())
    say(name, good, f"error {error:.2e} of {allowed:.2e}, lse {lse_error:.1e}")
    return call


def order_of(dim):
    return {"leaf": 2048, "block": 2048 if dim > 128 else 8192}


def accuracy(library, dim, dtype):
    orders = (order_of(dim), {"leaf": 128, "block": 128}, {"leaf": 512, "block": 2048})
    shapes = ((1, 1, 1), (1, 1, 128), (2, 1, 1000), (1, 1, 5000), (3, 5, 700), (1, 1, 20000),
              (1, 8, 3000), (1, 3, 40000), (1, 6, 200), (2, 7, 5500))
    for order in orders:
        for batch, rows, keys in shapes:
            q, k, v = tensors(batch, rows, keys, 8, 2, dim, dtype)
            # docs/numerics-gpu.md: the weight of a row of one key is rounded, and not 1
            place_of_weight = v.abs().max().item() * (2 ** -8 if dtype == torch.bfloat16 else 2 ** -11)
            check(library, f"d{dim} {dtype} {order} {batch} x {rows} x {keys}", q, k, v,
                  max(textbook_error(q, k, v), place_of_weight if keys == 1 else 0.0), causal=True,
                  **order)


def masks(library, dim, dtype):
    order = {"leaf": 512, "block": 1024}
    for rows in (1, 6):
        q, k, v = tensors(3, rows, 1700, 8, 2, dim, dtype)
        k[1, 333:], v[1, 333:] = float("nan"), float("nan")
        k[2, 128:], v[2, 128:] = float("nan"), float("nan")
        lengths = {"k_lengths": [1700, 333, 128], "q_start": [1700 - rows, 333 - rows, 128 - rows]}
        check(library, "lengths, poison past them", q, k, v, causal=True, **lengths, **order)
        check(library, "a sequence without keys", q, k, v, causal=True, k_lengths=[1700, 0, 128],
              q_start=[1700 - rows, -rows, 128 - rows], **order)
        q, k, v = tensors(1, rows, 5000, 8, 2, dim, dtype)
        check(library, "window left 1500", q, k, v, causal=True, window=(1500, None), **order)
        check(library, "window 70, 30", q, k, v, window=(70, 30), q_start=[2000], **order)
        clean, poisoned = library.attend(q, k, v, window=(70, 30), q_start=[2000], **order), [
            x.clone() for x in (k, v)]
        for x in poisoned:
            x[:, :1930], x[:, 2030 + rows:] = float("nan"), float("nan")
        dirty = library.attend(q, *poisoned, window=(70, 30), q_start=[2000], **order)
        clean(), dirty()
        same("poison outside the window", clean.o, dirty.o)
        check(library, "full", q, k, v, **order)
        check(library, "negative start", q, k, v, causal=True, q_start=[-3], **order)
        check(library, "softcap", q, k, v, causal=True, softcap=3.0, **order)
        check(library, "sinks", q, k, v, causal=True, sinks=[0.3 * h for h in range(8)], **order)
        check(library, "out fp32", q, k, v, out_dtype=torch.float32, **order)
        check(library, "larger scale", q, k, v, scale=1.0, bound=2e-2, **order)
    q, k, v = tensors(1, 2, 900, 6, 6, dim, dtype, value_dim=dim // 2)
    check(library, "value_head_dim", q, k, v, causal=True, **order)
    q, k, v = tensors(2, 2, 900, 6, 2, dim - 24, dtype)
    check(library, "head_dim by padding", q, k, v, causal=True, **order)


def states(library, dim, dtype):
    """Slices of two nodes, merged and finished here in fp64, against the whole."""
    q, k, v = tensors(1, 3, 6000, 8, 2, dim, dtype)
    order = {"leaf": 512, "block": 1024}
    parts = library.attend(q, k, v, causal=True, nodes=[(0, 4), (4, 6)], **order)
    parts()
    torch.cuda.synchronize()
    o, mass, top = 0.0, 0.0, None
    rows = 3 * 8
    for state in parts.states:
        values, e, l = (x.double() for x in state.split([rows * dim, rows, rows]))
        top = e.max() if top is None else top
        weight = torch.exp2(e - top)
        o, mass = o + values.view(rows, dim) * weight[:, None], mass + l * weight
    expected, _ = reference(q, k, v, causal=True)
    error = ((o / mass[:, None]).view(1, 3, 8, dim) - expected).abs().max().item()
    say("states of two nodes", error < 2 ** -8, f"error {error:.2e}")


def bits(library, others, dim, dtype):
    order = order_of(dim)
    for keys in (700, 9000, 70000):
        q, k, v = tensors(2, 7, keys, 8, 2, dim, dtype)
        whole = library.attend(q, k, v, causal=True, **order)
        whole()
        again = library.attend(q, k, v, causal=True, **order)
        for _ in range(20):
            again()
        same(f"{keys} keys: the same again", whole.o, again.o)
        for most in (1, 7, 60):
            few = library.attend(q, k, v, causal=True, most_ctas=most, **order)
            few()
            same(f"{keys} keys: {most} CTAs", whole.o, few.o)
            same(f"{keys} keys: {most} CTAs, lse", whole.lse, few.lse)
        for row in (0, 6):
            one = library.attend(q[1:, row:row + 1].contiguous(), k[1:], v[1:], causal=True,
                                 q_start=[keys - 7 + row], **order)
            one()
            same(f"{keys} keys: query {row} alone", whole.o[1:, row:row + 1], one.o)
        room = [torch.cat([x, torch.full_like(x[:, :500], float("nan"))], 1) for x in (k, v)]
        roomy = library.attend(q, *room, causal=True, k_lengths=[keys] * 2,
                               q_start=[keys - 7] * 2, **order)
        roomy()
        same(f"{keys} keys: spare capacity", whole.o, roomy.o)
        for name, kernel in others.items():
            other = kernel.attend(q, k, v, causal=True, **order)
            other()
            same(f"{keys} keys: {name}", whole.o, other.o)
            same(f"{keys} keys: {name}, lse", whole.lse, other.lse)
        free = library.attend(q, k, v, causal=True, leaf=0)
        free()
        torch.cuda.synchronize()
        if keys > 9000:
            differ = int((whole.o != free.o).sum())
            say("free order differs (negative control)", differ > 0, f"{differ} differ")


def repeats(library, dim, dtype):
    """CTAs of several units, where a merge comes between tiles: docs/kernel-log.md, a wrong tile."""
    lengths = [7919 * (i + 1) % 6000 for i in range(40)]
    q, k, v = tensors(40, 2, 6000, 16, 4, dim, dtype)
    call = library.attend(q, k, v, causal=True, k_lengths=lengths,
                          q_start=[length - 2 for length in lengths], leaf=2048, block=4096)
    first, differ = call().clone(), 0
    for _ in range(200):
        differ += int((call() != first).any())
    say("a batch of 40, again and again", differ == 0, f"{differ} of 200 runs differ")


def main():
    library, others = Library(sys.argv[1], "decode"), {}
    for name in ("prefill", "plain"):
        try:
            others[name] = Library(sys.argv[1], name)
        except ValueError:
            say(f"the {name} kernel is there", False)
    torch.manual_seed(7)
    names = {"bf16": torch.bfloat16, "fp16": torch.float16}
    dims, dtypes = (sys.argv[2:] + ["128,64,256", "bf16,fp16"][len(sys.argv) - 2:])[:2]
    for dim in (int(d) for d in dims.split(",")):
        for dtype in (names[name] for name in dtypes.split(",")):
            accuracy(library, dim, dtype)
            masks(library, dim, dtype)
            states(library, dim, dtype)
            bits(library, others, dim, dtype)
            repeats(library, dim, dtype)
    return finish()


sys.exit(main())
