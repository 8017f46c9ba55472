#!/bin/bash
# Ctrl-C, once and twice, the signals of a closed terminal and of a batch system, and SIGKILL, to one
# process and to mpirun, while it computes and while it writes: everything ends, no file is left. On a
# file system without unnamed files too, where the output has a temporary name meanwhile, and where
# an output replaces another.
. "$(dirname "$0")/common.bash"
need_mpi
build_shim mpicc -DSHIM_MPI
job=(--shape "4,2,32" --tokens 900 --causal --leaf 64 --block 64 --threads 1 --timeout "$timeout"
  --out "$out/o.npy" --lse "$out/lse.npy")

# interrupt SIGNAL TIMES CALL NTH COMMAND...: at that call the process (or rank 0) dawdles, and the
# signal comes. Without --default-signal a background process of a script ignores SIGINT.
interrupt() {
  local signal=$1 times=$2 call=$3 nth=$4 pid i
  shift 4
  label="$signal x $times at $call $nth ${named[*]} ${*:1:3}"
  checks=$((checks + 1))
  rm -f "$work/hit"
  SHIM_DO=delay:4000 SHIM_CALL=$call SHIM_NTH=$nth timeout -k 2 60 \
    env --default-signal=INT --default-signal=QUIT "${named[@]}" "$@" >"$work/said" 2>&1 \
    </dev/null &
  pid=$!
  for ((i = 0; i < 200; i++)); do
    [ ! -e "$work/hit" ] || break
    sleep 0.1
  done
  begin=$(date +%s.%N)
  for ((i = 0; i < times; i++)); do
    pkill "-$signal" -P $pid # the child of timeout
    sleep 0.3
  done
  wait $pid 2>/dev/null
  code=$?
  seconds=$(awk "BEGIN { printf \"%.1f\", $(now) - $begin }")
  expect_hit
  [ $code != 0 ] || failed "exit code 0" "$work/said"
  if [ "$times" = 2 ]; then abandoned; fi
  check_ending
}

# At the second Ctrl-C mpirun leaves its processes, and its own files, behind: they end by their own
# deadlines.
abandoned() {
  local i
  for ((i = 0; i < 2 * (timeout + 5); i++)); do
    [ -n "$(left_over)" ] || break
    sleep 0.5
  done
  rm -f "$work/segments"/*
}

label="healthy run"
run "$work/splitkv" make --shape 4,2,32 --tokens 900 --out "$out/x.safetensors"
run "$work/splitkv" prefill "${job[@]}"
remember_healthy

alone=("${shimmed[@]}" "$work/splitkv" prefill "${job[@]}")
ranks=("${launcher[@]}" -np 3 "${shimmed[@]}" SHIM_RANK=0 "$work/splitkv" prefill "${job[@]}")
make=("${shimmed[@]}" "$work/splitkv" make --shape "4,2,32" --tokens 900 --out "$out/x.safetensors")
for named in "" SHIM_NO_TMPFILE=1; do
  # shellcheck disable=SC2206 # none or one
  named=($named)
  interrupt INT 1 pwrite 2 "${alone[@]}"
  interrupt TERM 1 fsync 2 "${alone[@]}"
  interrupt HUP 1 pwrite 2 "${alone[@]}"
  interrupt KILL 1 pwrite 2 "${alone[@]}"
  interrupt INT 1 pwrite 2 "${make[@]}"
  interrupt INT 1 pwrite 2 "${ranks[@]}"
  interrupt INT 2 pwrite 2 "${ranks[@]}"
  interrupt TERM 1 GOMP_parallel 1 "${ranks[@]}"
  cp "$work/healthy/"*.npy "$out/"
  interrupt KILL 1 renameat 2 "${alone[@]}"
done
finish
