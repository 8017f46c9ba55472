#!/bin/bash
# plan and account: what they say, and how soon.
source "$(dirname "$0")/lib.sh"

began=$SECONDS
expect 0 "" "$splitkv" plan --tokens 1M --ranks 4096 --layout zigzag --reduce tree
[ $((SECONDS - began)) -le 20 ] || fail "4096 ranks took $((SECONDS - began)) s"
grep -q '256 blocks of 4096 keys on 4096 ranks' out || fail "$(cat out)"
grep -q 'tree .*<- chosen' out || fail "no chosen path: $(cat out)"
expect 0 "" "$splitkv" plan --tokens 64k --ranks 6 --dot tree.dot
grep -q 'digraph' tree.dot || fail "no picture"
for rank in 0 1 2 3 4 5; do
  grep -q "rank $rank\"" tree.dot || fail "rank $rank is not in the picture"
done
# What plan says is what a run says.
expect 0 "" "$splitkv" plan --shape 2,2,32 --tokens 1000 --ranks 3 --leaf 64 --block 64 --direction pass-q --reduce tree --json
planned=$(grep -o '"rounds":[0-9]*,"passes":[0-9]*' out)
expect 0 "" mpi 3 prefill --shape 2,2,32 --tokens 1000 --leaf 64 --block 64 --direction pass-q --reduce tree --json
ran=$(grep -o '"rounds":[0-9]*,"passes":[0-9]*' out)
[ -n "$planned" ] && [ "$planned" = "$ran" ] || fail "planned $planned, ran $ran"

expect 0 "" "$splitkv" account --shape llama3-8b --tokens 8192 --gpu h100
for figure in '4.000 GiB' '16.156 GiB' '6553.6' '4096.0' '5.18 ms' '165.7 ms' '35.6 ms' '776 bytes'; do
  grep -q "$figure" out || fail "account lacks $figure: $(cat out)"
done
finish
