#!/bin/bash
# Two ranks with a GPU each, over NCCL: one is killed, or stopped, in each phase of a job, and the
# job ends in time, names the rank and leaves nothing.
#   gpu.sh [full] [PART...]: open, a way to reduce, leave, memory. "full": timeouts of 5 s, and more
#   rounds of each way.
. "$(dirname "$0")/common.bash"
[ $full = no ] || shift
ways="scatter gather tree butterfly ring kv-ring kv-gather"
parts=${*:-open $ways leave memory}
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
if [ "$gpus" -lt 2 ]; then
  echo "no two GPUs here"
  exit 77
fi
need_mpi
build_shim mpicc -DSHIM_MPI

job=(prefill --backend cuda --shape "8,2,128" --tokens 8k --dtype bf16 --causal
  --timeout "$timeout" --out "$out/o.npy" --lse "$out/lse.npy")

strike() { # ACTION NTH CALL ARGUMENTS...: rank 1 of 2
  fault "$1" 2 1 "$2" "$3" -1 "${@:4}" --transport nccl
  judge "$1" 1
}
both() { strike kill "$@" && strike stop "$@"; }

label="healthy run"
run "$work/splitkv" "${job[@]}"
remember_healthy
label="healthy run over NCCL"
run "${launcher[@]}" -np 2 "$work/splitkv" "${job[@]}" --transport nccl
if grep 'this build has no NCCL' "$work/said"; then exit 77; fi
expect_code 0
check_ending

# NCCL opens in threads of its own: "after" it has begun.
part_open() {
  both 1 ncclCommInitRankConfig "${job[@]}"
  both 1 after:ncclCommInitRankConfig "${job[@]}"
  both 1 ncclGroupEnd "${job[@]}" # the first messages
}

# Each round of a way to reduce; "after": its messages, and kernels before them, are in the queue.
part_rounds() { # WAY
  local direction=pass-q nth when action last=3
  case $1 in kv-*) direction=pass-kv ;; esac
  if [ $full = yes ]; then last=5; fi
  for ((nth = 2; nth <= last; nth++)); do # the first group is of opening
    when=after:
    if [ $((nth % 2)) = 0 ]; then when=; fi
    for action in kill stop; do
      fault $action 2 1 $nth ${when}ncclGroupEnd -1 "${job[@]}" --transport nccl \
        --direction $direction --reduce "${1#kv-}"
      [ -e "$work/hit" ] || break 2
      judge $action 1
    done
  done
  if [ $nth = 2 ]; then failed "no round was met" "$work/said"; fi
  if [ $nth -le $last ]; then
    expect_code 0
    check_ending
  fi
}

part_leave() {
  both 1 ncclCommFinalize "${job[@]}"
  both 1 after:ncclCommFinalize "${job[@]}"
  both 1 MPI_Finalize "${job[@]}"
}

# Another program has the GPU's memory, all but a little.
part_memory() {
  local hog ms probe=${SKV_PROBE:-$(dirname "$splitkv")/tests/mpi_wire_probe}
  label="little memory"
  CUDA_VISIBLE_DEVICES=1 "$probe" 0 - hog 3000000000 >"$work/hog" 2>&1 &
  hog=$!
  for ((ms = 0; ms < 10000; ms += 100)); do
    if grep -q left "$work/hog"; then break; fi
    sleep 0.1
  done
  run "${launcher[@]}" -np 2 "$work/splitkv" prefill --backend cuda --transport nccl \
    --shape "16,4,128" --tokens 1M --dtype bf16 --timeout "$timeout"
  kill $hog
  expect_code 6
  expect_text 'rank 1 .*needs [0-9]+ bytes .*but [0-9]+ bytes .*are free'
  expect_one_message
  check_ending
}

for part in $parts; do
  case $part in
  open | leave | memory) "part_$part" ;;
  *)
    [[ " $ways " == *" $part "* ]] || { echo "gpu.sh: no part $part" && exit 2; }
    part_rounds "$part"
    ;;
esac
done
finish
