#!/bin/bash
# Ranks that compute on GPUs: one is killed, or stopped, in each phase of a job, and the job ends in
# time, names the rank and leaves nothing.
#   gpu.sh [full] [nccl|staged] [PART...]: open, a way to reduce, leave, memory
# nccl: two ranks with a GPU each. staged: two and three ranks that share a GPU, through the host's
# memory. Without the word: what the GPUs of this host are enough for. "full": timeouts of 5 s, and
# more rounds of each way.
. "$(dirname "$0")/common.bash"
[ $full = no ] || shift
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
wire=staged
if [ "$gpus" -gt 1 ]; then wire=nccl; fi
case ${1:-} in nccl | staged) wire=$1 && shift ;; esac
ways="scatter gather tree butterfly ring kv-ring kv-gather"
parts=${*:-open $ways leave memory}
if [ "$gpus" = 0 ] || [ "$gpus $wire" = "1 nccl" ]; then
  echo "GPUs here: $gpus"
  exit 77
fi
need_mpi
build_shim mpicc -DSHIM_MPI

job=(prefill --backend cuda --shape "8,2,128" --tokens 8k --dtype bf16 --causal --leaf 512 --block 512
  --timeout "$timeout" --out "$out/o.npy" --lse "$out/lse.npy" --transport)
if [ $wire = nccl ]; then job+=(nccl); else job+=(mpi); fi

strike() { # RANKS ACTION NTH CALL TAG ARGUMENTS...: rank 1
  fault "$2" "$1" 1 "${@:3}"
  judge "$2" 1
}
both() { strike "$1" kill "${@:2}" && strike "$1" stop "${@:2}"; }

label="healthy run"
run "$work/splitkv" "${job[@]:0:${#job[@]}-2}"
remember_healthy
label="healthy run on two ranks, $wire"
run "${launcher[@]}" -np 2 "$work/splitkv" "${job[@]}"
if grep 'this build has no NCCL' "$work/said"; then exit 77; fi
expect_code 0
check_ending

# NCCL opens in threads of its own: "after" it has begun.
nccl_open() {
  both 2 1 ncclCommInitRankConfig -1 "${job[@]}"
  both 2 1 after:ncclCommInitRankConfig -1 "${job[@]}"
  both 2 1 ncclGroupEnd -1 "${job[@]}" # the first messages
}

# With a GPU taken; then agreements: on the context, on slots and the arguments, on tensors.
staged_open() {
  both 2 1 MPI_Allgather -1 "${job[@]}"
  strike 3 kill 1 MPI_Isend 32700 "${job[@]}"
  strike 3 stop 3 MPI_Isend 32700 "${job[@]}"
  strike 3 kill 6 MPI_Isend 32700 "${job[@]}"
}

# strike, where there may be no such call any more: then the job ends well, and this is false.
round() {
  fault "$2" "$1" 1 "${@:3}"
  if [ -e "$work/hit" ]; then
    judge "$2" 1
    return 0
  fi
  expect_code 0
  check_ending
  return 1
}
no_round() { failed "no round was met" "$work/said"; }

# Each round of a way to reduce; "after": its messages, and kernels before them, are in the queue.
nccl_rounds() { # TAG DIRECTION REDUCE
  local nth when action last=3
  if [ $full = yes ]; then last=5; fi
  for ((nth = 2; nth <= last; nth++)); do # the first group is of opening
    when=after:
    if [ $((nth % 2)) = 0 ]; then when=; fi
    for action in kill stop; do
      round 2 $action $nth ${when}ncclGroupEnd -1 "${job[@]}" --direction "$2" --reduce "$3" ||
        break 2
    done
  done
  if [ $nth = 2 ]; then no_round; fi
}

# Each message of a rank: before it goes, and once it has come and is copied to the GPU.
staged_rounds() { # TAG DIRECTION REDUCE
  local nth last=2
  if [ $full = yes ]; then last=8; fi
  set -- "$1" "${job[@]}" --direction "$2" --reduce "$3"
  for ((nth = 1; nth <= last; nth++)); do
    round 3 kill $nth MPI_Isend "$@" || break
    if [ $nth = 1 ] || [ $full = yes ]; then strike 3 stop $nth MPI_Isend "$@"; fi
  done
  if [ $nth = 1 ]; then no_round; fi
  round 3 kill 1 after:MPI_Imrecv -1 "${@:2}" || no_round
  round 2 stop 1 after:MPI_Imrecv -1 "${@:2}" || no_round
}

part_rounds() { # WAY
  local direction=pass-q tag=1
  case $1 in kv-*) direction=pass-kv tag=3 ;; esac
  ${wire}_rounds $tag $direction "${1#kv-}"
}

nccl_leave() {
  both 2 1 ncclCommFinalize -1 "${job[@]}"
  both 2 1 after:ncclCommFinalize -1 "${job[@]}"
  both 2 1 MPI_Finalize -1 "${job[@]}"
}

# After MPI_Finalize nobody but mpirun waits for a rank: it can be killed, but not found stopped.
staged_leave() {
  both 3 1 MPI_Finalize -1 "${job[@]}"
  strike 3 kill 1 after:MPI_Finalize -1 "${job[@]}"
}

# with_hog LEFT COMMAND...: another program has the memory of a GPU, all but so many bytes.
with_hog() {
  local hog ms probe=${SKV_PROBE:-$(dirname "$splitkv")/tests/mpi_wire_probe}
  CUDA_VISIBLE_DEVICES=$((gpus > 1)) "$probe" 0 - hog "$1" >"$work/hog" 2>&1 &
  hog=$!
  for ((ms = 0; ms < 10000; ms += 100)); do
    if grep -q left "$work/hog"; then break; fi
    sleep 0.1
  done
  run "${@:2}"
  kill $hog
  expect_code 6
  expect_one_message
  check_ending
}

part_memory() {
  label="little memory"
  with_hog 3000000000 "${launcher[@]}" -np 2 "$work/splitkv" prefill --backend cuda \
    --transport "${job[-1]}" --shape "16,4,128" --tokens 1M --dtype bf16 --timeout "$timeout"
  expect_text 'rank [01] .*needs [0-9]+ bytes .*but [0-9]+ bytes .*are free'
  label="no memory"
  with_hog 1000000 "${launcher[@]}" -np 2 "$work/splitkv" "${job[@]}"
  expect_text 'rank [01], on host .*: its GPU has no memory left'
}

for part in $parts; do
  case $part in
  open | leave) "${wire}_$part" ;;
  memory) part_memory ;;
  *)
    [[ " $ways " == *" $part "* ]] || { echo "gpu.sh: no part $part" && exit 2; }
    part_rounds "$part"
    ;;
  esac
done
finish
