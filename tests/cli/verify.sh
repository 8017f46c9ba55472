#!/bin/bash
# A sample of splitkv verify, and that it can fail: free order gives other bits.
source "$(dirname "$0")/lib.sh"

verify() {
  timeout 300 mpirun --oversubscribe -np 3 "$splitkv" verify --timeout 120 "$@" >out 2>err || {
    fail "verify: $(cat err)"
    return
  }
}
verify
[ "$(tail -n 1 out)" = PASS ] || fail "$(cat out)"
grep -q 'free order.*PASS' out || fail "the negative control: $(cat out)"

bits() {
  expect 0 "" mpi "$1" prefill --shape 4,2,64 --tokens 1500 --leaf 64 --block 64 --order "$2"
  bits_of
}
[ "$(bits 1 pinned)" = "$(bits 3 pinned)" ] || fail "pinned order depends on the ranks"
[ "$(bits 1 pinned)" != "$(bits 3 free)" ] || fail "free order gave the same bits: comparing shows nothing"
finish
