#!/bin/bash
# tune: figures that choose paths and change no bit, on which ranks agree.
source "$(dirname "$0")/lib.sh"
seeded="prefill --shape 2,2,32 --tokens 700 --queries 16 --leaf 64 --block 64"

expect 0 "" "$splitkv" tune --quick --out one.json
expect 0 "" mpi 3 tune --quick --out three.json
grep -q '"ranks":.*3' three.json || fail "$(cat three.json)"
expect 2 "needs --out" "$splitkv" tune --quick
expect 7 "No such file" mpi 2 tune --quick --out nowhere/tune.json

expect 0 "" mpi 3 $seeded
bits=$(bits_of)
# Slow links choose what moves few bytes (states, of few queries), late ones what moves few messages.
sed 's/"bytes_per_second":.*/"bytes_per_second": 1e3,/' three.json >slow.json
sed -e 's/"bytes_per_second":.*/"bytes_per_second": 1e15,/' -e 's/"\(round\|message\)_seconds":.*/"\1_seconds": 1,/' \
  three.json >late.json
for file in three slow late; do
  expect 0 "" mpi 3 $seeded --tuned $file.json
  [ "$(bits_of)" = "$bits" ] || fail "$file.json: bits $(bits_of), not $bits"
  grep -o 'plan .*blocks' out >>plans
done
[ "$(sort -u plans | wc -l)" -gt 1 ] || fail "no figures change the path: $(cat plans)"

# Ranks that read different figures would choose different paths.
two() { # FILE FILE
  mpirun --oversubscribe -np 1 "$splitkv" $seeded --tuned "$1" : -np 1 "$splitkv" $seeded --tuned "$2"
}
export -f two
export seeded
expect 0 "" two one.json one.json
expect 4 "machine" two one.json slow.json
expect 7 "missing.json" two one.json missing.json
echo '{"splitkv_tune": 1}' >empty.json
expect 3 "empty.json: .*missing" "$splitkv" $seeded --tuned empty.json
expect 3 "empty.json: .*missing" "$splitkv" plan --tokens 4k --tuned empty.json
expect 0 "" "$splitkv" plan --tokens 4k --ranks 4 --tuned slow.json
grep -q 'links of 1 kB/s\|links of 1.0* kB/s\|slow.json' out || fail "$(cat out)"

# Nodes: what leaves a node is slower.
expect 0 "" "$splitkv" plan --tokens 64k --ranks 16 --machine gpu --node-ranks 0 --decode
near=$(grep 'chosen' out)
expect 0 "" "$splitkv" plan --tokens 64k --ranks 16 --machine gpu --decode
far=$(grep 'chosen' out)
grep -q 'between nodes of 8 ranks' out || fail "no nodes: $(cat out)"
[ "$near" != "$far" ] || fail "nodes cost nothing: $far"
finish
