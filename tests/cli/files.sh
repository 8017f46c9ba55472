#!/bin/bash
# Files in, files out: the same bytes from any number of ranks, layout, chunk and direction; wrong
# files are refused with their own exit code, and nothing is left behind.
source "$(dirname "$0")/lib.sh"
work="--causal --leaf 64 --block 128"

expect 0 "" "$splitkv" make --shape 4,2,64 --tokens 700 --seed 3 --out x.safetensors
for name in q k v; do
  expect 0 "" "$splitkv" make --shape 4,2,64 --tokens 700 --seed 3 --tensor $name --out $name.npy
done
files="--q q.npy --k k.npy --v v.npy"
named="--q x.safetensors:q --k x.safetensors:k --v x.safetensors:v"

expect 0 "" "$splitkv" prefill $named $work --out o.npy --lse l.npy --check
grep -q '^check *PASS' out || fail "check: $(cat out)"
bits=$(bits_of)
expect 0 "" "$splitkv" prefill --shape 4,2,64 --tokens 700 --seed 3 $work
[ "$(bits_of)" = "$bits" ] || fail "seeded input has other bits than its file"

run() { # RANKS OPTIONS...: the same bytes as one rank
  local ranks=$1
  shift
  expect 0 "" mpi "$ranks" "$@" $work --out p.npy --lse m.npy
  [ "$(bits_of)" = "$bits" ] || fail "other bits: $ranks ranks, $*"
  same o.npy p.npy
  same l.npy m.npy
}
run 2 prefill $files
run 3 prefill $named --results root --layout zigzag --reduce butterfly
run 3 prefill $files --results all --direction pass-kv
run 4 prefill $files --chunk 77 --layout blocks:1 --reduce tree
run 5 prefill $files --capacity 5000 --reduce ring --direction pass-q
run 2 prefill $files --threads 2
run 2 decode $files --reduce gather

# Axes in another order: a transposed copy gives transposed bytes.
python3 - <<'PYTHON' || skip_axes=1
import struct
def load(path):
    data = open(path, "rb").read()
    size = struct.unpack("<H", data[8:10])[0]
    return eval(data[10:10 + size])["shape"], data[10 + size:]
def save(path, shape, data):
    head = repr({"descr": "<f4", "fortran_order": False, "shape": shape}).encode()
    head += b" " * (63 - (10 + len(head)) % 64) + b"\n"
    open(path, "wb").write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data)
for name in "qkvo":
    (t, h, d), data = load(name + ".npy")
    row = d * 4
    rows = [data[(i * h + j) * row:(i * h + j + 1) * row] for j in range(h) for i in range(t)]
    save(name + "_htd.npy", (h, t, d), b"".join(rows))
PYTHON
if [ -z "${skip_axes:-}" ]; then
  expect 0 "" mpi 3 prefill --q q_htd.npy --k k_htd.npy --v v_htd.npy --tensor-layout htd $work \
    --out p.npy
  [ "$(bits_of)" = "$bits" ] || fail "other bits with htd"
  expect 0 "" "$splitkv" diff p.npy o_htd.npy
fi

# bf16 goes out as <u2, or as fp32 when asked.
expect 0 "" mpi 2 prefill --shape 4,2,64 --tokens 100 --dtype bf16 --out b.npy
head -c 128 b.npy | grep -q '<u2' || fail "bf16 is not stored as <u2"
expect 0 "" mpi 2 prefill --shape 4,2,64 --tokens 100 --dtype bf16 --out b.npy --out-dtype fp32
head -c 128 b.npy | grep -q '<f4' || fail "fp32 output is not <f4"

# Refusals. Nothing may appear, and nothing that is there may change.
rm -f p.npy m.npy
cp o.npy kept.npy
expect 7 "missing.npy" "$splitkv" prefill --q missing.npy --k k.npy --v v.npy --out p.npy
expect 7 "rank [0-9]: .*missing.npy" mpi 3 prefill --q missing.npy --k k.npy --v v.npy --out p.npy
expect 3 "must be alike" "$splitkv" prefill --q q.npy --k k.npy --v q.npy --out p.npy
expect 3 "2 dimensions" "$splitkv" prefill --q q.npy --k l.npy --v l.npy --out p.npy
head -c 1000 k.npy >short.npy
expect 3 "short.npy" mpi 2 prefill --q q.npy --k short.npy --v v.npy --out p.npy
expect 7 "folder" mpi 2 prefill $files --out nowhere/p.npy --lse m.npy
expect 7 "regular file|directory" "$splitkv" prefill $files --out . --lse m.npy
expect 3 "is an input" mpi 2 prefill $files --out q.npy
expect 2 "same file" "$splitkv" prefill $files --out p.npy --lse p.npy
[ ! -e p.npy ] && [ ! -e m.npy ] || fail "a refused run left a file"
same o.npy kept.npy
# Both files or none.
mkdir taken
expect 7 "taken" mpi 2 prefill $files $work --out p.npy --lse taken
[ ! -e p.npy ] || fail "O without its LSE"
[ "$(find . -name '.*' -type f | wc -l)" = 0 ] || fail "temporary files: $(find . -name '.*' -type f)"
finish
