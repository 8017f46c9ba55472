#!/bin/bash
# One rank is killed, or stopped, in each phase of a job: the job ends in time, names the rank and
# leaves nothing. "full": also stops where the short run only kills, each hop of each reduction,
# other ranks, and verify.
. "$(dirname "$0")/common.bash"
need_mpi
build_shim mpicc -DSHIM_MPI

job=(--shape "4,2,32" --tokens 900 --causal --leaf 64 --block 64 --threads 1 --timeout "$timeout"
  --out "$out/o.npy" --lse "$out/lse.npy")

strike() { # ACTION NTH CALL TAG ARGUMENTS...: rank 1 of 3
  local action=$1 or=''
  # Once in ten times mpirun does not say whose death it saw before the rank has spoken to it, and it kills
  # the others before a deadline of theirs has passed: then nobody names the rank.
  case $3 in start | MPI_Init_thread) or='|but 1 process returned' ;; esac
  fault "$action" 3 1 "${@:2}"
  judge "$action" 1 "$or"
}

label="healthy run"
run "$work/splitkv" prefill "${job[@]}"
remember_healthy

# The phases of every job, in order. Tags: 1 states, 2 keys and values, 32700 and 32701 agreements.
phases=(
  "1 start -1" "1 MPI_Init_thread -1" "1 connect -1" "1 after:MPI_Init_thread -1"
  "1 MPI_Comm_split_type -1" "1 MPI_Allgather -1" "1 MPI_Comm_idup -1" "1 MPI_Isend 32700"
  "1 mmap -1" "1 GOMP_parallel -1" "1 MPI_Isend 1" "1 pwrite -1"
  "9 MPI_Isend 32700" "1 MPI_Finalize -1"
)
stops=" start connect MPI_Allgather MPI_Comm_idup GOMP_parallel pwrite MPI_Finalize "
for phase in "${phases[@]}"; do
  read -r nth call tag <<<"$phase"
  set -- "$nth" "$call" "$tag" prefill "${job[@]}" --direction pass-q --reduce tree
  strike kill "$@"
  if [ $full = yes ] || [[ $stops == *" $call "* ]]; then strike stop "$@"; fi
done
# After MPI_Finalize nobody but mpirun waits for a rank: it can be killed, but not found stopped.
strike kill 1 after:MPI_Finalize -1 prefill "${job[@]}"

# The hops of each way to reduce.
ways=("pass-q gather 1" "pass-q scatter 1" "pass-q butterfly 1" "pass-q ring 1" "pass-kv ring 2"
  "pass-kv gather 2")
for way in "${ways[@]}"; do
  read -r direction reduce tag <<<"$way"
  set -- MPI_Isend "$tag" prefill "${job[@]}" --direction "$direction" --reduce "$reduce"
  strike kill 1 "$@"
  if [ $full = yes ] || [ "$reduce" = butterfly ] || [ "$direction $reduce" = "pass-kv ring" ]; then
    strike stop 1 "$@"
  fi
done

# Rank 0 judges agreements and gives the outputs their names.
fault stop 3 0 2 MPI_Isend 32701 prefill "${job[@]}"
judge stop 0
fault kill 3 0 1 linkat -1 prefill "${job[@]}"
judge kill 0
fault stop 4 2 1 after:MPI_Irecv 1 verify --timeout "$timeout"
judge stop 2
fault kill 4 3 2 MPI_Comm_idup -1 verify --timeout "$timeout"
judge kill 3

# A rank that leaves without a word (Open MPI #1379), or whose MPI fails.
for call in start MPI_Comm_idup MPI_Finalize; do
  strike exit:0 1 $call -1 prefill "${job[@]}"
done

# A slow rank is no dead rank.
strike_slow() {
  fault "delay:$((timeout * 600))" 3 1 "$@" prefill "${job[@]}" --direction pass-q --reduce tree
  expect_hit
  expect_code 0
  for name in o.npy lse.npy; do cmp "$out/$name" "$work/healthy/$name" || failed "other bits"; done
  check_ending
}
strike_slow 1 GOMP_parallel -1
strike_slow 1 MPI_Isend 1

if [ $full = yes ]; then
  for way in "pass-q tree 1" "${ways[@]}"; do
    read -r direction reduce tag <<<"$way"
    for rank in 0 1 2 3; do
      for call in MPI_Isend MPI_Irecv; do
        for ((nth = 1; ; nth++)); do
          for action in kill stop; do
            fault $action 4 $rank $nth $call "$tag" prefill "${job[@]}" --direction "$direction" \
              --reduce "$reduce"
            [ -e "$work/hit" ] || break 2
            judge $action $rank
          done
        done
        expect_code 0
        check_ending
      done
    done
  done
fi
finish
