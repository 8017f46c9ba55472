#!/bin/bash
# Slurm as the launcher, on a cluster that is this machine alone: srun gives the bits of one process, and
# a fault ends a job as it does under mpirun. Needs slurmctld, slurmd and srun with PMIx (slurm-wlm).
. "$(dirname "$0")/common.bash"
need_mpi
PATH=$PATH:/usr/sbin
for program in slurmctld slurmd srun; do
  command -v $program >/dev/null || { echo "no $program"; exit 77; }
done
build_shim mpicc -DSHIM_MPI

# Nobody is asked who he is: nothing here listens longer than this script lives.
host=$(hostname -s) user=$(id -un) port=$((20000 + $$ % 20000)) daemons=()
export SLURM_CONF=$work/slurm.conf
mkdir "$work/state" "$work/spool"
cat >"$SLURM_CONF" <<END
ClusterName=splitkv
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SelectType=select/cons_tres
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) Gres=gpu:2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES
END
# Two GPUs that are none: Slurm hands them out.
printf 'Name=gpu File=/dev/%s\n' null zero >"$work/gres.conf"
for daemon in slurmctld slurmd; do
  $daemon -D >"$work/$daemon.log" 2>&1 &
  daemons+=($!)
done
trap 'kill "${daemons[@]}"; wait; clean_up' EXIT
for ((i = 0; i < 50; i++)); do
  if srun -n 1 true 2>"$work/said"; then break; fi
  sleep 0.2
done
[ $i -lt 50 ] || { echo "Slurm does not start: $(tail -n 1 "$work/said")"; exit 77; }
srun --mpi=list 2>&1 | grep -q pmix || { echo "this Slurm has no PMIx"; exit 77; }

job=(--shape "4,2,32" --tokens 900 --causal --leaf 64 --block 64 --threads 1 --timeout "$timeout"
  --out "$out/o.npy" --lse "$out/lse.npy")
ranks=(srun --mpi=pmix --overcommit -n 3)

label="healthy run"
run "$work/splitkv" prefill "${job[@]}"
remember_healthy

label="three ranks"
run "${ranks[@]}" "$work/splitkv" prefill "${job[@]}"
expect_code 0
expect_text "on 3 ranks"
for name in o.npy lse.npy; do cmp "$out/$name" "$work/healthy/$name" || failed "other bits"; done
check_ending

# As the README starts a job on GPUs: each rank of a node sees all of its GPUs, and takes its own.
label="the options of the README"
recipe=(srun --mpi=pmix --overcommit --nodes 1 --ntasks-per-node 2 --gpus-per-node 2 --cpu-bind=none)
run "${recipe[@]}" sh -c "echo \"sees \$CUDA_VISIBLE_DEVICES\"; exec '$work/splitkv' info"
expect_code 0
[ "$(grep -c '^sees 0,1$' "$work/said")" = 2 ] || failed "other GPUs are seen" "$work/said"
expect_text '^rank 1 '
check_ending

label="no PMI"
run srun --mpi=none --overcommit -n 3 "$work/splitkv" prefill "${job[@]}"
[ $code != 0 ] || failed "exit code 0" "$work/said"
check_ending

# strike CODES TEXT ACTION RANK CALL NTH
strike() {
  label="$3 rank $4 at $5 $6"
  run "${ranks[@]}" "${shimmed[@]}" SHIM_NO_TMPFILE=1 SHIM_DO="$3" SHIM_RANK="$4" SHIM_CALL="$5" \
    SHIM_NTH="$6" "$work/splitkv" prefill "${job[@]}"
  expect_hit
  # shellcheck disable=SC2086 # a list
  expect_code $1
  expect_text "$2"
  check_ending
}
strike "137" "task 1: Killed" kill 1 MPI_Isend 1
strike "137" "task 0: Killed" kill 0 pwrite 2
strike "5 137" "rank 1 (has died, stopped|is stopped)" stop 1 MPI_Isend 1
strike "5 137" "rank 1 is stopped" stop 1 start 1
strike "5 137" "rank 1 is gone" kill 1 MPI_Init_thread 1
strike "5" "rank 1 is gone" exit:0 1 start 1
finish
