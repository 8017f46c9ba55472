#!/bin/bash
# Ranks that were given different work, and launchers that do not fit: one message, one exit code.
source "$(dirname "$0")/lib.sh"
seeded="prefill --shape 2,2,32 --tokens 300"

pair() { # OPTIONS -- OPTIONS: two ranks with command lines of their own
  local first=() second=() now=first
  for word in "$@"; do
    if [ "$word" = -- ]; then now=second; elif [ $now = first ]; then first+=("$word"); else second+=("$word"); fi
  done
  mpirun --oversubscribe -np 1 "$splitkv" "${first[@]}" : -np 1 "$splitkv" "${second[@]}"
}
export -f pair
expect 0 "" pair $seeded -- $seeded --threads 1
expect 4 "causal" pair $seeded -- $seeded --causal
expect 4 "seed" pair $seeded -- $seeded --seed 1
expect 4 "reduce" pair $seeded --reduce tree -- $seeded --reduce scatter
expect 4 "chunk" pair $seeded -- $seeded --chunk 10
expect 4 "out" pair $seeded --out o.npy -- $seeded
expect 4 "leaf|block" pair $seeded -- $seeded --leaf 64
expect 4 "timeout" pair $seeded --timeout 20 -- $seeded --timeout 30
expect 2 "rank 1: .*--frobnicate" pair $seeded -- $seeded --frobnicate
expect 2 "rank 1: no input" pair $seeded -- prefill
[ ! -e o.npy ] || fail "o.npy was written although ranks disagreed"

# Every process alone, although the launcher started two: refused by the first, silently by others.
expect 2 "another MPI" env PMI_SIZE=2 PMI_RANK=0 "$splitkv" $seeded
expect 2 "" env PMI_SIZE=2 PMI_RANK=1 "$splitkv" $seeded
expect 2 "another MPI" env SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 "$splitkv" $seeded
# A shell inside an allocation is no parallel job.
expect 0 "" env SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_JOB_ID=1 "$splitkv" $seeded
expect 0 "" env SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 "$splitkv" info --json
grep -q '"mpi_started":false' out || fail "MPI was started for a shell in an allocation"
expect 2 "one process" mpi 2 $seeded --transport self

# --json is one object on stdout and nothing else.
expect 0 "" mpi 3 $seeded --json --check
[ "$(wc -l <out)" = 1 ] && head -c 1 out | grep -q '{' || fail "not one object: $(cat out)"
grep -q '"bits":"[0-9a-f]\{16\}"' out || fail "no bits in $(cat out)"

# --repeat compares every run with the first.
expect 0 "" mpi 3 $seeded --leaf 64 --block 64 --repeat 5
grep -q '^repeats *PASS: the time is the median of 5; .* 0 had other bits' out || fail "no repeats: $(cat out)"
expect 2 "drop --repeat" "$splitkv" $seeded --repeat 2 --order-log log
expect 0 "" mpi 2 $seeded
grep -q '^transport *mpi$' out || fail "no transport: $(cat out)"
expect 0 "" "$splitkv" $seeded --json
grep -q '"transport":"self"' out || fail "no transport: $(cat out)"

# info works with and without a launcher, and shows every rank's binding.
expect 0 "" "$splitkv" info --json
expect 0 "" mpi 2 info
[ "$(grep -c '^rank [01] *CPUs' out)" = 2 ] || fail "no bindings: $(cat out)"
expect 0 "" "$splitkv" info --bind none --threads 1
grep -q '1 thread; not bound' out || fail "bound in spite of --bind none: $(cat out)"

# Help is printed once, whatever the number of ranks.
expect 0 "" mpi 3 prefill --help
[ "$(grep -c '^examples:' out)" = 1 ] || fail "help from several ranks"

# stdout that goes away, is closed, or is full.
"$splitkv" info | true
[ "${PIPESTATUS[0]}" = 0 ] || fail "a reader that went away"
expect 0 "" bash -c '"$0" info >&-' "$splitkv"
expect 7 "disk full" bash -c '"$0" info >/dev/full' "$splitkv"
finish
