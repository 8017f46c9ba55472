#!/bin/bash
# Command lines: wrong ones exit 2 with one line that helps; --help and --version exit 0.
source "$(dirname "$0")/lib.sh"

expect 0 "" "$splitkv" --help
grep -q 'splitkv COMMAND' out || fail "no help"
expect 0 "" "$splitkv" --version
grep -Eq '^splitkv [0-9]+\.[0-9]+\.[0-9]+$' out || fail "no version"
expect 2 "no command" "$splitkv"
expect 2 "did you mean prefill\?" "$splitkv" prefil
expect 2 "unknown command" "$splitkv" frobnicate
for command in prefill decode verify plan account merge diff make replay info; do
  expect 0 "" "$splitkv" $command --help
  grep -q '^examples:' out || fail "$command --help has no examples"
  grep -q "  .*splitkv $command" out || fail "$command --help has no example of $command"
  expect 2 "knows no option --frobnicate" "$splitkv" $command --frobnicate
done
expect 2 "did you mean --tokens" "$splitkv" prefill --shape 8,2,64 --tokns 100
expect 2 "did you mean zigzag" "$splitkv" prefill --shape 8,2,64 --tokens 100 --layout zigzg
expect 2 "did you mean butterfly" "$splitkv" prefill --shape 8,2,64 --tokens 100 --reduce buterfly
expect 2 "given twice" "$splitkv" prefill --shape 8,2,64 --tokens 1 --tokens 2
expect 2 "unexpected word" "$splitkv" prefill --shape 8,2,64 --tokens 1 quickly
expect 2 "no input" "$splitkv" prefill
expect 2 "k is missing" "$splitkv" prefill --q q.npy --v v.npy
expect 2 "above 0" "$splitkv" prefill --shape 8,2,64 --tokens 1 --scale 0
expect 2 "plan needs --tokens" "$splitkv" plan --ranks 4
expect 2 "did you mean h200" "$splitkv" account --gpu h20
# Values that only the input shows to be wrong are bad input.
expect 3 "3 query heads" "$splitkv" prefill --shape 3,2,64 --tokens 100
expect 3 "multiple of 64" "$splitkv" prefill --shape 8,2,64 --tokens 100 --leaf 100
expect 3 "has 100 keys" "$splitkv" prefill --shape 8,2,64 --tokens 100 --kv-len 101
expect 3 "less than the 100 keys" "$splitkv" prefill --shape 8,2,64 --tokens 100 --capacity 99
expect 3 "ring or gather" "$splitkv" prefill --shape 8,2,64 --tokens 100 --direction pass-kv --reduce tree
expect 6 "cannot hold" "$splitkv" prefill --shape 8,2,64 --tokens 1G --queries 1
expect 6 "no memory for|larger than any" "$splitkv" prefill --shape 8,2,64 --tokens 1000G --queries 1
expect 2 "backend cuda" "$splitkv" prefill --shape 8,2,64 --tokens 100 --transport nccl
expect 8 "kernel|CUDA|cuda" "$splitkv" prefill --shape 8,2,64 --tokens 100 --backend cuda
finish
