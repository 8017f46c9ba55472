"""The prefill kernel against fp64, and its bits against themselves under changes that must not
matter. Ends with a count of failures; exit status 1 if there are any."""

import sys

import torch

sys.path.insert(0, "bench/gpu")
from binding import Library, reference  # noqa: E402
from checks import MASKS, finish, same, say  # noqa: E402


def tensors(batch, q_tokens, k_tokens, q_heads, kv_heads, dims, dtype, size=1.0):
    dim, value_dim = dims
    make = lambda tokens, heads, dim: torch.randn(  # noqa: E731
        batch, tokens, heads, dim, device="cuda").mul_(size).to(dtype)
    return make(q_tokens, q_heads, dim), make(k_tokens, kv_heads, dim), \
        make(k_tokens, kv_heads, value_dim)


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
    call = library.attend(q, k, v, **options)
    call()
    torch.cuda.synchronize()
    o, lse = reference(q, k, v, **{key: options[key] for key in MASKS if key in options})
    written = ~torch.isnan(lse)
    rounding = ((o.to(call.o.dtype) + 0.3 - 0.3).double() - o)[written].abs().max().item() \
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


def orders(dims):
    """Leaf and block: one endless leaf, blocks of several leaves, pending nodes."""
    return ((0, 0), (512, 4096), (128, 256))


def accuracy(library, dims, dtype):
    for leaf, block in orders(dims):
        for rows, keys in ((128, 128), (300, 300), (257, 1000), (64, 3000), (1100, 1100), (129, 130)):
            for causal in (False, True):
                q, k, v = tensors(2, rows, keys, 8, 2, dims, dtype)
                o, _ = reference(q, k, v, causal=causal)
                bound = (plain(q, k, v, causal).double() - o).abs().max().item()
                check(library, f"d{dims} {dtype} leaf {leaf}/{block} {rows}x{keys} causal {causal}",
                      q, k, v, bound, causal=causal, leaf=leaf, block=block)


def one_key(library, dims, dtype):
    """The output is v, but for half a last place from the weight and half from its own rounding:
    docs/numerics-gpu.md says why."""
    q, k, v = tensors(64, 1, 1, 8, 2, dims, dtype)
    call = library.attend(q, k, v, causal=True)
    call()
    v = v.repeat_interleave(4, 2).double()
    place = torch.exp2(torch.floor(torch.log2(v.abs()))) * torch.finfo(dtype).eps
    error = ((call.o.double() - v).abs() / place).max().item()
    say("one key", error <= 1, f"error {error:.2f} last places")


def poison_unseen(library, q, k, v):
    """Keys that no row sees share tiles with keys that some do."""
    for name, seen, options in (("before the window", slice(300, 900), {"window": (100, 0)}),
                                ("after the last row", slice(0, 577), {"causal": True,
                                                                       "q_start": [77]})):
        clean = library.attend(q, k, v, **options)
        clean()
        poisoned = [torch.full_like(x, float("nan")) for x in (k, v)]
        for x, y in zip(poisoned, (k, v)):
            x[:, seen] = y[:, seen]
        call = library.attend(q, *poisoned, **options)
        call()
        same("poison " + name, clean.o, call.o)


def masks(library, dims, dtype):
    q, k, v = tensors(3, 300, 700, 4, 4, dims, dtype)
    k[1, 333:], v[1, 333:] = float("nan"), float("nan")
    k[2, 128:], v[2, 128:] = float("nan"), float("nan")
    check(library, "lengths, poison past them", q, k, v, causal=True, q_lengths=[300, 120, 5],
          k_lengths=[700, 333, 128])
    check(library, "more queries than keys", q, k[:, :200].contiguous(), v[:, :200].contiguous(),
          causal=True, k_lengths=[200, 100, 0])
    check(library, "sequences without queries", q, k, v, q_lengths=[0, 300, 0],
          k_lengths=[700, 333, 128])
    q, k, v = tensors(1, 500, 900, 4, 2, dims, dtype)
    check(library, "window left 100", q, k, v, causal=True, window=(100, None))
    check(library, "window 70, 30", q, k, v, window=(70, 30))
    check(library, "window 300, leaf 128", q, k, v, window=(300, 0), leaf=128, block=128)
    check(library, "negative start", q, k, v, causal=True, q_start=[-200])
    poison_unseen(library, q, k, v)
    q, k, v = tensors(1, 200, 2000, 4, 2, dims, dtype, 8.0)
    check(library, "large logits", q, k, v, causal=True, bound=2e-1)


def extras(library, dims, dtype):
    """Softcap, sinks, outputs of other types, strides."""
    sinks = [1.5, float("-inf"), -3.0, 9.0]
    for leaf, block in orders(dims):
        order = {"leaf": leaf, "block": block}
        q, k, v = tensors(2, 200, 900, 4, 2, dims, dtype, 2.0)
        check(library, f"softcap 20, {order}", q, k, v, causal=True, softcap=20.0, bound=1e-2,
              **order)
        check(library, f"softcap 2000, {order}", q, k, v, softcap=2000.0, bound=1e-2, **order)
        check(library, f"sinks, {order}", q, k, v, causal=True, sinks=sinks, bound=1e-2,
              q_start=[-50, 700], **order)
    bound = (plain(q, k, v, True).double() - reference(q, k, v, causal=True)[0]).abs().max().item()
    for out_dtype in (torch.float32, torch.float16, torch.bfloat16):
        call = check(library, f"{out_dtype} out", q, k, v, bound, causal=True, out_dtype=out_dtype)
        if out_dtype == torch.float32:
            wide = call.o
        same(f"{out_dtype} out is fp32 rounded", call.o, wide.to(out_dtype))
    wide = wide.to(dtype)
    odd = torch.empty(2, 200, 4, dims[1] + 1, dtype=dtype, device="cuda")[..., 1:]
    call = library.attend(q, k, v, causal=True, o=odd)
    call()
    same("O at odd addresses", odd, wide)
    dim, value_dim = dims
    packed = torch.randn(2, 300, 2, 4 * dim + value_dim, device="cuda").to(dtype)
    q, k = packed[..., :dim], packed[..., dim:2 * dim]
    v = packed[..., 3 * dim:3 * dim + value_dim]
    call = check(library, "views of one packed tensor", q, k, v, causal=True, bound=1e-2)
    dense = library.attend(q.contiguous(), k.contiguous(), v.contiguous(), causal=True)
    dense()
    same("views of one packed tensor", call.o, dense.o)
    by_head = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    call = library.attend(*by_head, causal=True)
    call()
    same("heads outside of tokens", call.o, dense.o)


def bits(library, dims, dtype):
    order = {"leaf": 512, "block": 4096}
    q, k, v = tensors(2, 3000, 9000, 8, 2, dims, dtype)
    whole = library.attend(q, k, v, causal=True, **order)
    whole()
    again = library.attend(q, k, v, causal=True, **order)
    again(), again()
    same("the same again", whole.o, again.o)
    few = library.attend(q, k, v, causal=True, most_ctas=7, **order)
    few()
    same("7 CTAs", whole.o, few.o)
    same("7 CTAs, lse", whole.lse, few.lse)
    part = library.attend(q[1:, 1000:1777].contiguous(), k[1:], v[1:], causal=True, q_start=[7000],
                          **order)
    part()
    same("a chunk of queries", whole.o[1:, 1000:1777], part.o)
    one = library.attend(q[1:, 1000:1001].contiguous(), k[1:], v[1:], causal=True, q_start=[7000],
                         **order)
    one()
    same("one query", whole.o[1:, 1000:1001], one.o)
    short = library.attend(q[:1, :500].contiguous(), k[:1, :6500].contiguous(),
                           v[:1, :6500].contiguous(), causal=True, **order)
    short()
    same("fewer keys (prefix)", whole.o[:1, :500], short.o)
    free = library.attend(q, k, v, causal=True, leaf=0)
    free()
    torch.cuda.synchronize()
    differ = int((whole.o != free.o).sum())
    say("one endless leaf differs (negative control)", differ > 0, f"{differ} differ")
    check(library, "9000 keys, pending nodes", q[:1, :200].contiguous(), k[:1], v[:1], leaf=128,
          block=256)


def merge(left, right, value_dim):
    """Of two slices, as kernels/state.h has it: weights are powers of two, so that one rounding is
    left, that of the sum."""
    rows = left.numel() // (value_dim + 2)
    cut = lambda x: (x[:rows * value_dim].view(rows, value_dim),  # noqa: E731
                     x[rows * value_dim:rows * (value_dim + 1)], x[rows * (value_dim + 1):])
    (lo, le, ll), (ro, re, rl) = cut(left), cut(right)
    e = torch.maximum(le, re)
    wl, wr = (torch.where(torch.isneginf(x), 0.0, torch.exp2(x - e)) for x in (le, re))
    return torch.cat(((lo * wl[:, None] + ro * wr[:, None]).flatten(), e, ll * wl + rl * wr))


def states(library, dims, dtype):
    """Nodes apart, merged here, against the whole; keys that only a node's tensor has."""
    order = {"leaf": 128, "block": 256}
    q, k, v = tensors(2, 300, 2900, 4, 2, dims, dtype)
    options = dict(causal=True, k_lengths=[2900, 1500], q_start=[2600, 1300], **order)
    cuts = {"one": [(0, 12)], "frontier": [(0, 8), (8, 12)], "blocks": [(b, b + 1) for b in range(12)]}
    merged = {}
    for name, nodes in cuts.items():
        call = library.attend(q, k, v, nodes=nodes, **options)
        call()
        torch.cuda.synchronize()
        have = {node: state.cpu() for node, state in zip(nodes, call.states)}

        def node(begin, end):
            if (begin, end) in have:
                return have[begin, end]
            half = 1 << (end - begin - 1).bit_length() - 1
            return merge(node(begin, begin + half), node(begin + half, end), v.shape[3])

        merged[name] = node(0, 12)
    same("states: frontier nodes", merged["one"], merged["frontier"])
    same("states: single blocks", merged["one"], merged["blocks"])
    whole = library.attend(q, k, v, out_dtype=torch.float32, **options)
    whole()
    rows = merged["one"].numel() // (v.shape[3] + 2)
    o, mass = merged["one"][:rows * v.shape[3]].view(rows, -1), merged["one"][-rows:]
    o = torch.where(mass[:, None] == 0, 0.0, o / mass[:, None])
    same("states: divided, the whole's O", o, whole.o.cpu().view(rows, -1))
    call = library.attend(q, k[:, 1024:].contiguous(), v[:, 1024:].contiguous(), nodes=[(4, 8)],
                          **options)
    call.kept[4][0].token_offset = 0  # the tensors begin with the node
    call()
    other = library.attend(q, k, v, nodes=[(4, 8)], **options)
    other()
    same("states: tensors that begin with the node", call.states[0], other.states[0])


def large(library, dtype):
    """Offsets past 2^32 elements; more row tiles than a grid's y or z could count."""
    for stride in (1 << 25, 1 << 26):  # times 128 tokens
        room = torch.zeros(stride * 128 + 64, device="cuda", dtype=dtype)
        far = room.as_strided((1, 128, 1, 64), (0, stride, 64, 1))
        far.copy_(torch.randn(1, 128, 1, 64, device="cuda").to(dtype))
        dense = library.attend(far.contiguous(), far.contiguous(), far.contiguous(), causal=True)
        dense()
        call = library.attend(far, far, far, causal=True)
        call()
        same(f"token stride {stride}", dense.o, call.o)
        del room, far, call
    q, k, v = tensors(70000, 2, 3, 1, 1, (64, 64), dtype)
    call = library.attend(q, k, v, causal=True)
    call()
    x = torch.einsum("bqhd,bkhd->bqk", q.double(), k.double()) / 8
    x[:, 0, 2] = float("-inf")
    error = torch.einsum("bqk,bkhd->bqhd", torch.softmax(x, 2), v.double()) - call.o.double()
    say("70000 sequences", error.abs().max().item() < 3e-2, f"error {error.abs().max().item():.2e}")


def main():
    library = Library(sys.argv[1])
    torch.manual_seed(7)
    dims = [[int(x) for x in d.split("/")] for d in sys.argv[2].split(",")]
    names = {"bf16": torch.bfloat16, "fp16": torch.float16}
    for dtype in (names[name] for name in sys.argv[3].split(",")):
        for dim in dims:
            for part in (accuracy, one_key, masks, extras, bits, states):
                part(library, (dim[0], dim[-1]), dtype)
        large(library, dtype)
    return finish()


sys.exit(main())
