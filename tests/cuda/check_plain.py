"""The plain kernel against fp64; its bits against the prefill kernel's and under changes that must
not matter; reports from the field (docs/field-bugs.md); sizes past 2^31 and 2^32. Ends with a count
of failures; exit status 1 if there are any."""

import sys

import torch

sys.path.insert(0, "bench/gpu")
import checks  # noqa: E402
from binding import Library, reference, tensor  # noqa: E402
from checks import MASKS  # noqa: E402

NAN, INF = float("nan"), float("inf")


def say(name, good, text=""):
    if not good or text:
        checks.say(name, good, text)


def random(batch, tokens, heads, dim, dtype, size=1.0):
    return torch.randn(batch, tokens, heads, dim, device="cuda").mul_(size).to(dtype)


def tensors(batch, q_tokens, k_tokens, heads, dims, dtype, size=1.0):
    return (random(batch, q_tokens, heads[0], dims[0], dtype, size),
            random(batch, k_tokens, heads[1], dims[0], dtype, size),
            random(batch, k_tokens, heads[1], dims[1], dtype))


def product(a, b):
    """a @ b; in fp32 one term after the other, as plain code does it."""
    if a.dtype != torch.float32:
        return a @ b
    total = torch.zeros(*a.shape[:-1], b.shape[-1], device="cuda")
    for i in range(a.shape[-1]):
        total += a[..., i:i + 1] * b[..., i:i + 1, :]
    return total


def textbook(q, k, v, causal=False, softcap=0.0, sinks=None, scale=None):
    """What the error rule compares with: softmax in fp32, weights and output in the inputs' dtype."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2).transpose(1, 2) for x in (k, v))
    x = product(q.transpose(1, 2), k.transpose(2, 3)).float() * (scale or q.shape[3] ** -0.5)
    if softcap:
        x = softcap * torch.tanh(x / softcap)
    if causal:
        rows, keys = x.shape[2:]
        x.masked_fill_(torch.ones_like(x, dtype=torch.bool).triu_(keys - rows + 1), -INF)
    if sinks:
        sink = torch.tensor(sinks, device="cuda")[None, :, None, None].expand(*x.shape[:3], 1)
        x, v = torch.cat((x, sink), 3), torch.cat((v, torch.zeros_like(v[:, :, :1])), 2)
    return product(torch.softmax(x, 3).nan_to_num_(0.0).to(q.dtype), v).transpose(1, 2)


def attend(library, q, k, v, **options):
    call = library.attend(q, k, v, **options)
    call()
    torch.cuda.synchronize()
    return call


def check(library, name, q, k, v, bound=None, **options):
    """The error rule, where `bound` is the textbook's error, and LSE's."""
    call = attend(library, q, k, v, **options)
    o, lse = reference(q, k, v, **{key: options[key] for key in MASKS if key in options})
    written = ~torch.isnan(lse)
    rounding = ((o.to(q.dtype) + 0.3 - 0.3).double() - o)[written].abs().max().item()
    error = (call.o.double() - o)[written].abs().max().item()
    allowed = 2 * (rounding if bound is None else bound) + 2 * rounding
    finite, empty = written & torch.isfinite(lse), written & torch.isinf(lse)
    lse_error = ((call.lse.double() - lse).abs() / lse.abs().clamp(min=1))[finite]
    lse_error = lse_error.max().item() if finite.any() else 0.0
    good = error <= allowed and lse_error <= 1e-5
    good &= bool((call.lse[empty] == -INF).all()) and bool((call.o[empty] == 0).all())
    good &= bool(torch.isnan(call.o[~written].float()).all())
    say(name, good, f"error {error:.2e} of {allowed:.2e}, lse {lse_error:.1e}" if not good else "")
    return error / allowed if error else 0.0


def one_key(library, dtype):
    """O = round(w) v / w: the textbook's exact answer may be missed by a last place of the inputs'
    type (docs/numerics-gpu.md), which the error rule does not know of."""
    q, k, v = tensors(64, 1, 1, (6, 2), (64, 64), dtype)
    call = attend(library, q, k, v)
    expected = v.repeat_interleave(3, 2).double()
    bound = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 2**-22}[dtype]
    say(f"one key {dtype}", bool(((call.o.double() - expected).abs() <= bound * expected.abs()).all()))


def same(name, a, b):
    bits = lambda x: x.contiguous().view(  # noqa: E731
        torch.int16 if x.element_size() == 2 else torch.int32)
    differ = int((bits(a) != bits(b)).sum())
    say(name, differ == 0, f"{differ} of {a.numel()} differ" if differ else "")


def same_call(name, a, b):
    same(name, a.o, b.o)
    same(name + ", lse", a.lse, b.lse)


def accuracy(library, dtype):
    worst = 0.0
    orders = {"leaf": 128, "block": 256}, {"leaf": 512, "block": 4096}
    for dims in ((1, 1), (3, 5), (8, 8), (40, 72), (63, 64), (64, 64), (80, 80), (96, 33), (128, 128),
                 (128, 256), (130, 130), (192, 128), (200, 7), (256, 256)):
        for rows, keys in ((1, 2), (1, 700), (77, 130), (300, 300), (5, 2), (2, 5)):
            for number, causal in enumerate((False, True)):
                q, k, v = tensors(2, rows, keys, (6, 2), dims, dtype)
                options = {"causal": causal}
                if rows == 77:
                    options |= {"softcap": 3.0, "sinks": [-1.0, 0.0, 2.5, -INF, 9.0, -40.0]}
                if rows == 300:
                    options["scale"] = 0.7
                o, _ = reference(q, k, v, **options)
                bound = (textbook(q, k, v, **options).double() - o).abs().max().item()
                name = f"{dtype} dims {dims} {rows}x{keys} {options}"
                worst = max(worst, check(library, name, q, k, v, bound, **options,
                                         **orders[number]))
    say(f"{dtype}: error", worst <= 1, f"at most {worst:.2f} of what is allowed")


def masks(library, dtype):
    q, k, v = tensors(3, 300, 700, (4, 4), (64, 64), dtype)
    for s, keys in ((1, 333), (2, 128)):
        k[s, keys:], v[s, keys:] = NAN, NAN
    check(library, "lengths, poison past them", q, k, v, 1e-3, causal=True,
          q_lengths=[300, 120, 5], k_lengths=[700, 333, 128])
    check(library, "more queries than keys", q, k, v, 1e-3, causal=True, k_lengths=[200, 100, 0])
    q, k, v = tensors(1, 500, 900, (4, 2), (72, 40), dtype)
    for window in ((100, None), (70, 30), (300, 0), (0, 0)):
        check(library, f"window {window}", q, k, v, 1e-3, window=window, leaf=128, block=128)
    check(library, "negative start", q, k, v, 1e-3, causal=True, q_start=[-200])
    # keys that no row sees: before the window of the first, after the last
    cut = (slice(None), slice(None, 400 - 100)), (slice(None), slice(600, None))
    clean = attend(library, q[:, :200], k, v, window=(100, 0), q_start=[400])
    for place in cut:
        k[place], v[place] = NAN, INF
    same_call("poison where no row sees", clean,
              attend(library, q[:, :200], k, v, window=(100, 0), q_start=[400]))


def places(library, dtype):
    """Strides, alignment, batch, chunks, grids, capacity: no bit may change."""
    for dims in ((64, 64), (80, 24), (256, 192)):
        q, k, v = tensors(3, 70, 900, (6, 2), dims, dtype)
        order = {"causal": True, "leaf": 128, "block": 256}
        whole = attend(library, q, k, v, **order)
        same_call("again, 7 CTAs", whole, attend(library, q, k, v, most_ctas=7, **order))
        swap = lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)  # noqa: E731
        same_call("heads before tokens", whole, attend(library, swap(q), swap(k), swap(v), **order))
        packed = torch.full((3, 900, 10 * max(dims) + 3), NAN, dtype=dtype, device="cuda")

        def inside(x, at):
            view = packed[:, :x.shape[1], at:at + x.shape[2] * x.shape[3]].unflatten(
                2, x.shape[2:])
            view.copy_(x)
            return view

        begin = 6 * dims[0] + 1
        parts = inside(q, 1), inside(k, begin), inside(v, begin + 2 * dims[0])
        same_call("views into one packed tensor, odd offsets", whole,
                  attend(library, *parts, **order))
        one = attend(library, q[1:2], k[1:2], v[1:2], **order)
        same("a sequence alone", whole.o[1:2], one.o)
        part = attend(library, q[:, 30:41], k, v, q_start=[860] * 3, **order)
        same("a chunk of queries", whole.o[:, 30:41], part.o)
        roomy = [torch.cat((x, torch.full_like(x[:, :333], NAN)), 1) for x in (k, v)]
        same_call("spare capacity, NaN in it", whole,
                  attend(library, q, *roomy, k_lengths=[900] * 3, **order))
        free = attend(library, q, k, v, **(order | {"leaf": 1024, "block": 1024}))
        say("another leaf differs (negative control)", bool((whole.o != free.o).any()))


def against_prefill(plain, prefill, dtype):
    lengths = {"k_lengths": [5000, 1777], "q_lengths": [333, 100]}
    for dims in ((64, 64), (96, 96), (128, 128), (192, 128), (256, 256), (72, 40)):
        q, k, v = tensors(2, 333, 5000, (4, 2), dims, dtype)
        for order in ({"leaf": 128, "block": 128}, {"leaf": 128, "block": 512},
                      {"leaf": 512, "block": 2048}, {"leaf": 2048, "block": 8192}):
            for options in ({}, {"causal": True}, {"window": (200, 40)}, {"scale": 2.0},
                            {"causal": True, "softcap": 5.0},
                            {"sinks": [0.5, -2.0, 3.0, -INF], "out_dtype": torch.float32}):
                same_call(f"as prefill: {dims} {dtype} {order} {options}",
                          attend(plain, q, k, v, **order, **options, **lengths),
                          attend(prefill, q, k, v, **order, **options, **lengths))
        nodes = {"nodes": [(0, 8), (8, 10)], "leaf": 128, "block": 512, "causal": True}
        for mine, theirs in zip(attend(plain, q, k, v, **nodes, **lengths).states,
                                attend(prefill, q, k, v, **nodes, **lengths).states):
            same(f"as prefill: states, {dims} {dtype}", mine, theirs)


def field_reports(library):
    half, wide = torch.float16, torch.bfloat16
    filled = lambda shape, value, dtype: torch.full(  # noqa: E731
        shape, value, dtype=dtype, device="cuda")
    for dtype in (half, wide, torch.float32):
        k = filled((1, 256, 1, 64), 0.0, dtype)
        k[0, 200], v = 1.0, filled((1, 256, 1, 64), 3.0, dtype)
        v[0, 200] = 5.0
        call = attend(library, filled((1, 1, 1, 64), 1.0, dtype), k, v, scale=100 / 64, leaf=128,
                      block=128)
        say(f"B06 logits 0 and 100 {dtype}", abs(call.lse.item() - 100) < 1e-4
            and bool((call.o == 5).all()))
        call = attend(library, filled((1, 1, 1, 128), -64.0, dtype),
                      filled((1, 1, 1, 128), 64.0, dtype), filled((1, 1, 1, 128), 1.0, dtype))
        say(f"B07 one key far below {dtype}", abs(call.lse.item() + 46340.95) < 0.01
            and bool((call.o == 1).all()), f"{call.lse.item()}, {call.o.view(-1)[0].item()}")
        q, k, v = tensors(2, 1, 3, (2, 2), (64, 64), dtype)
        k[0, 1:], v[0, 1:] = 0.0, 0.0
        clean = attend(library, q, k, v, k_lengths=[1, 3])
        k[0, 1:], v[0, 1:] = NAN, NAN
        same_call(f"B11 {dtype}", clean, attend(library, q, k, v, k_lengths=[1, 3]))
    q, k, v = tensors(1, 16, 40, (64, 64), (80, 80), half)
    few = attend(library, q, k, v, causal=True)
    many = attend(library, *(x.repeat(1, 1, 1025, 1) for x in (q, k, v)), causal=True)
    same("B29 65600 heads", many.o, few.o.repeat(1, 1, 1025, 1))
    q, k, v = (x.transpose(0, 2).contiguous() for x in (q, k, v))  # 64 sequences
    many = attend(library, *(x.repeat(1025, 1, 1, 1) for x in (q, k, v)), causal=True)
    same("B29 65600 sequences", many.o, few.o.transpose(0, 2).repeat(1025, 1, 1, 1))


def large(library):
    """Elements past 2^31 and 2^32 in each of Q, K, V and O, by token, head and sequence."""
    room = torch.empty((1 << 32) + (1 << 28), dtype=torch.bfloat16, device="cuda")
    q, k, v = tensors(2, 300, 1000, (4, 2), (64, 64), torch.bfloat16)
    order = {"causal": True, "leaf": 128, "block": 256}
    expected = attend(library, q, k, v, **order)

    def spread(x, stride):
        return torch.as_strided(room, x.shape, stride).copy_(x)

    far, step = 1 << 32, (1 << 32) // 990 // 8 * 8
    thirds = far // 3 // 8 * 8 + 8
    kv_strides = {"token": (1024, step, 128, 1), "odd token": (1024, step + 1, 128, 1),
                  "head": (1 << 17, 128, far, 1), "sequence": (far, 256, 64, 1)}
    q_strides = kv_strides | {"token": (1024, 32 * step // 10 // 8 * 8, 128, 1),
                              "head": (1 << 17, 128, thirds, 1)}
    for name, stride in kv_strides.items():
        for which in range(3):
            parts = [q, k, v]
            parts[which] = spread(parts[which], stride if which else q_strides[name])
            same_call(f"large {name} stride of {'qkv'[which]}", expected,
                      attend(library, *parts, **order))
    for name in ("token", "head", "sequence"):
        call = library.attend(q, k, v, **order)
        view = torch.as_strided(room, q.shape, q_strides[name]).fill_(NAN)
        call.finish.o = tensor(view)
        call()
        torch.cuda.synchronize()
        same(f"large {name} stride of O", view, expected.o)
    # B26: a row at 225304 * 9728 elements; and a million keys
    q, k, v = tensors(1, 3, 1 << 20, (2, 1), (128, 128), torch.bfloat16)
    token = torch.as_strided(room, (1, 1 << 18, 1, 128), (0, 9728, 128, 1))
    token.copy_(k[:, :1 << 18])
    whole = attend(library, q, k[:, :1 << 18], v[:, :1 << 18], causal=True, leaf=2048, block=8192)
    same_call("B26", whole, attend(library, q, token, v[:, :1 << 18], causal=True, leaf=2048,
                                   block=8192))
    check(library, "a million keys", q, k, v, 1e-4, causal=True, leaf=2048, block=8192)


def main():
    path, parts = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "all"
    torch.manual_seed(7)
    plain = Library(path, "plain")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        if parts in ("all", "accuracy"):
            one_key(plain, dtype)
            accuracy(plain, dtype)
            masks(plain, dtype)
        if parts in ("all", "places"):
            places(plain, dtype)
        if parts in ("all", "prefill") and dtype != torch.float32:
            against_prefill(plain, Library(path, "prefill"), dtype)
    if parts in ("all", "large"):
        field_reports(plain)
        large(plain)
    return checks.finish()


sys.exit(main())
