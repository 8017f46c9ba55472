#!/bin/bash
# One process; the n-th call of a function fails, for n = 1, 2, ... until none is left: a message and
# a code of ours, or (where the call is dispensable) the right output; never a signal, never a part
# of an output. "full": more commands, and calls that fail from the n-th on.
. "$(dirname "$0")/common.bash"
build_shim cc

label="make"
"$work/splitkv" make --shape 4,2,32 --tokens 300 --seed 7 --out "$work/x.safetensors" || failed make
input=(--q "$work/x.safetensors:q" --k "$work/x.safetensors:k" --v "$work/x.safetensors:v")
# Memory, reading, writing: the errno of a machine in trouble. ENOMEM 12, EIO 5, ENOSPC 28, EMFILE 24.
faults=(malloc:12 calloc:12 realloc:12 mmap:12 open:24 openat:24 pread:5 pwrite:28 fsync:5 fstat:5
  fchmod:5 linkat:28 renameat:28 pthread_create:11 posix_spawn:11)

# strike COMMAND...: every call of it fails once.
strike() {
  local fault name error n said points=0 begin=$SECONDS
  label="healthy ${*:2:1}"
  rm -f "$out"/*
  run "$@"
  remember_healthy
  for fault in "${faults[@]}"; do
    name=${fault%:*} error=${fault#*:}
    for ((n = 1; n < 200; n++)); do
      label="$name $n ($ever): ${*:2}"
      run "${shimmed[@]}" $ever SHIM_CALL="$name" SHIM_NTH=$n SHIM_DO="fail:$error" "$@"
      [ -e "$work/hit" ] || break # its outputs stay: those of the next run replace them
      points=$((points + 1))
      judge
    done
    said=${said:-}" $name $((n - 1))"
  done
  echo "${*:2:1}: $points points:$said; $((SECONDS - begin)) s"
}

judge() {
  local name
  case $code in
  0) # it could do without
    for name in "$work/healthy"/*; do
      [ -e "$out/${name##*/}" ] || [ ! -e "$name" ] ||
        failed "exit code 0, but no ${name##*/}" "$work/said"
    done
    ;;
  3 | 6 | 7 | 8) expect_one_message ;;
  *) failed "exit code $code" "$work/said" ;;
  esac
  check_ending
}

ever="SHIM_UNUSED=1"
strike "$work/splitkv" prefill "${input[@]}" --causal --threads 1 --leaf 64 --block 64 \
  --out "$out/o.npy" --lse "$out/lse.npy"
if [ $full = yes ]; then
  ever="SHIM_EVER=1"
  strike "$work/splitkv" prefill "${input[@]}" --causal --threads 2 --leaf 64 --block 64 --check \
    --json --order-log "$out/log" --order-states --out "$out/o.npy" --lse "$out/lse.npy"
  ever="SHIM_UNUSED=1"
  strike "$work/splitkv" decode "${input[@]}" --chunk 7 --out "$out/o.npy"
  strike "$work/splitkv" make --shape 2,1,16 --tokens 100 --seed 7 --out "$out/x.safetensors"
  cp "$work/healthy/x.safetensors" "$work/y.safetensors"
  "$work/splitkv" prefill "${input[@]}" --out "$work/o.npy" --lse "$work/l.npy" >"$work/said"
  strike "$work/splitkv" merge --a-out "$work/o.npy" --a-lse "$work/l.npy" --b-out "$work/o.npy" \
    --b-lse "$work/l.npy" --out "$out/o.npy" --lse "$out/l.npy"
  strike "$work/splitkv" diff "$work/o.npy" "$work/o.npy"
  strike "$work/splitkv" plan --tokens 1M --ranks 64 --dot "$out/tree.dot"
fi
finish
