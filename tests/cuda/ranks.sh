#!/bin/bash
# tests/cuda/ranks.sh BUILD: the command on several ranks, on the GPUs of this host. More ranks than
# GPUs go through the host's memory (NCCL cannot run so); where there are two GPUs, one rank on each
# goes through NCCL too. All must have the bits of one GPU; free order must not.
set -uo pipefail
build=$(cd "${1:?a build folder}" && pwd) root=$(cd "$(dirname "$0")/../.." && pwd)
splitkv=$build/splitkv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
if [ "$(id -u)" = 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
failures=0
gpus=$("$splitkv" info | grep -c '^GPU ')
[ "$gpus" -gt 0 ] || { echo "no GPU here"; exit 77; }

fail() {
  echo "FAIL: $*"
  failures=$((failures + 1))
}

# mpi RANKS TRANSPORT COMMAND OPTION...
mpi() {
  timeout -k 5 150 mpirun --oversubscribe --bind-to none -np "$1" "${preload[@]}" \
    "$splitkv" "$3" --backend cuda --transport "$2" "${@:4}"
}
preload=()

check() { # NAME RANKS TRANSPORT COMMAND OPTION...: its exit code
  local name=$1 start=$SECONDS
  mpi "${@:2}" >out 2>&1 || fail "$name: $(grep -v '^--' out | head -n 12)"
  echo "$name: $((SECONDS - start)) s: $(grep -E '^(PASS|FAIL|bits|repeats|free order)' out | tr '\n' ';')"
}

bits() { # NAME WANTED RANKS TRANSPORT COMMAND OPTION...
  local name=$1 wanted=$2
  mpi "${@:3}" >out 2>&1
  [ "$(grep '^bits ' out)" = "$wanted" ] || fail "$name: ${*:5}: not $wanted: $(grep -E '^bits|splitkv:' out)"
}

# A problem and a way to share it out, which changes no bit. verify tries all ways, on small problems.
cases() {
  cat <<'END'
--layout contiguous --direction pass-q --reduce scatter : prefill --shape 32,8,128 --tokens 9000 --dtype bf16 --causal --leaf 512 --block 512
--layout zigzag --direction pass-q --reduce tree : prefill --shape 8,2,64 --tokens 5000 --dtype fp16 --window 900,0 --batch 2 --leaf 512 --block 1024
--layout blocks:1 --direction pass-q --reduce butterfly : prefill --shape 4,2,64 --tokens 3000 --causal --leaf 256 --block 256 --chunk 1100
--layout contiguous --direction pass-q --reduce ring : decode --shape 32,8,128 --tokens 100k --dtype bf16
--layout blocks:2 --direction pass-q --reduce scatter : decode --shape 16,4,256 --tokens 20000 --dtype bf16 --batch 8 --queries 2
--layout zigzag --direction pass-kv --reduce ring : prefill --shape 32,8,128 --tokens 12000 --dtype bf16 --causal --leaf 1024 --block 1024
--layout contiguous --direction pass-kv --reduce gather : prefill --shape 8,2,192,128 --tokens 4000 --dtype fp16 --batch 2 --capacity 6000 --leaf 512 --block 512
END
}

# The digest of each case on one GPU.
alone() {
  cases | while read -r line; do
    # shellcheck disable=SC2086
    "$splitkv" ${line#*: } --backend cuda | grep '^bits ' || echo "no bits: $line"
  done >alone
}

ways() { # RANKS TRANSPORT: each case, against one GPU
  local line wanted start=$SECONDS
  while read -r wanted <&3 && read -r line <&4; do
    # shellcheck disable=SC2086
    bits "$1 ranks over $2" "$wanted" "$1" "$2" ${line#*: } ${line% : *}
  done 3<alone 4< <(cases)
  echo "$1 ranks over $2, $(wc -l <alone) cases: $((SECONDS - start)) s"
}

# Pauses of any length up to US microseconds at some calls, on each rank for itself.
with_delays() { # CALL US
  mpicc -DSHIM_MPI -O1 -shared -fPIC "$root/tests/faults/shim.c" -o shim.so -ldl || return 1
  preload=(-x LD_PRELOAD="$work/shim.so" -x SHIM_CALL="$1" -x SHIM_DO=jitter:"$2" -x SHIM_EVER=1)
}

repeats() { # RANKS TRANSPORT CALL US
  with_delays "$3" "$4" || { fail "the shim does not compile"; return; }
  check "200 repeats with delays, $1 ranks, $2, prefill" "$1" "$2" prefill --shape 8,2,128 \
    --tokens 4000 --dtype bf16 --causal --leaf 256 --block 256 --repeat 200
  check "200 repeats with delays, $1 ranks, $2, decode" "$1" "$2" decode --shape 8,2,128 \
    --tokens 30000 --dtype bf16 --leaf 512 --block 512 --repeat 200
  preload=()
}

# What two ranks merged on GPUs, a CPU merges again: bit for bit; and it finds what is not so.
replayed() { # RANKS TRANSPORT
  local reduce
  for reduce in scatter tree ring; do
    mpi "$1" "$2" prefill --shape 4,2,64 --tokens 3000 --dtype bf16 --causal --leaf 256 --block 256 \
      --direction pass-q --reduce $reduce --order-log log --order-states >out 2>&1 ||
      fail "order log, $2, $reduce: $(grep splitkv: out)"
    "$splitkv" replay log >out 2>&1 || fail "replay, $2, $reduce: $(tail -n 3 out)"
  done
  tail -n 1 out
  printf '\x41' | dd of=log.states bs=1 seek=4097 conv=notrunc status=none
  ! "$splitkv" replay log >out 2>&1 || fail "a state was changed, and replay did not see it"
}

# Figures of these ranks choose a path, and change no bit.
tuned() { # RANKS TRANSPORT
  local line
  read -r line < <(cases)
  mpi "$@" tune --quick --out figures.json >out 2>&1 || fail "tune, $2: $(grep splitkv: out)"
  # shellcheck disable=SC2086
  bits "tuned, $2" "$(head -n 1 alone)" "$@" ${line#*: } --tuned figures.json
  echo "tuned, $2: $(grep '^plan ' out)"
}

alone
check "verify, staged" 3 mpi verify
ways 3 mpi
ways 8 mpi
repeats 5 mpi MPI_Isend 2000
replayed 2 mpi
tuned 2 mpi
if [ "$gpus" -gt 1 ] && "$splitkv" info | grep -q '^NCCL *[0-9]'; then
  check "verify, NCCL" 2 nccl verify
  ways 2 nccl
  repeats 2 nccl ncclGroupEnd 2000
  repeats 2 nccl clock_gettime 300 # between any two steps of an execute
  replayed 2 nccl
  tuned 2 nccl
  mpi $((gpus + 1)) nccl info >out 2>&1 && fail "NCCL with more ranks than GPUs"
  grep -q 'ranks 0 and 1 share GPU' out || fail "who shares a GPU is not said: $(cat out)"
else
  echo "NCCL: skipped, on $gpus GPU: $("$splitkv" info | grep '^NCCL')"
fi
echo "$failures failures"
[ $failures = 0 ]
