"""What the check_*.py have in common: a line a check, and a count of failures that ends them."""

import torch

FAILURES = []
MASKS = ("causal", "window", "q_lengths", "k_lengths", "q_start", "scale", "softcap", "sinks")


def say(name, good, text=""):
    print(("ok   " if good else "FAIL ") + name + " " + text, flush=True)
    if not good:
        FAILURES.append(name)


def same(name, a, b):
    bits = lambda x: x.contiguous().view(  # noqa: E731
        torch.int16 if x.element_size() == 2 else torch.int32)
    differ = int((bits(a) != bits(b)).sum())
    say(name, differ == 0, f"{differ} of {a.numel()} differ")


def finish():
    """The last line, and the program's exit status."""
    print(f"{len(FAILURES)} failures")
    return 1 if FAILURES else 0
