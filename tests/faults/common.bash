# common.bash: for the scripts of this folder. A job is judged from outside: its exit code, the
# clock, what it says, the processes and files it leaves.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
splitkv=${SKV_COMMAND:-$root/build/release/splitkv}
[ -x "$splitkv" ] || { echo "no $splitkv: build it first"; exit 1; }
full=no timeout=3 # of the jobs, in seconds
if [ "${1:-}" = full ]; then full=yes timeout=5; fi

# Everything lies in a folder of this script; its path is in the arguments of each process of ours.
work=$(mktemp -d "${TMPDIR:-/tmp}/splitkv-faults.XXXXXX")
out=$work/out
mkdir "$out" "$work/tmp" "$work/segments"
trap clean_up EXIT
clean_up() {
  local pid
  for pid in $(left_over); do kill -9 "$pid" 2>/dev/null; done
  if mountpoint -q "$work/disk"; then umount "$work/disk"; fi
  rm -rf "$work"
}
cp "$splitkv" "$work/splitkv"
cd "$work" || exit 1

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Where Open MPI keeps its own files, so that what it leaves is seen.
export TMPDIR=$work/tmp OMPI_MCA_btl_vader_backing_directory=$work/segments
launcher=(mpirun --oversubscribe --bind-to none)

need_mpi() {
  command -v mpirun >/dev/null && command -v mpicc >/dev/null && return
  echo "no mpirun"
  exit 77
}

build_shim() { # mpicc, or cc for one process
  "$@" -O1 -shared -fPIC "$root/tests/faults/shim.c" -o "$work/shim.so" -ldl ||
    { echo "the shim does not compile"; exit 1; }
}

failures=0 checks=0
failed() { # reason
  echo "FAILED: $label: $1"
  [ -z "${2:-}" ] || sed 's/^/    /' "$2" | head -n 25
  failures=$((failures + 1))
}
finish() {
  echo "$checks jobs, $failures failures, ${SECONDS} s"
  [ $checks -gt 0 ] && [ $failures = 0 ]
  exit
}

left_over() { # processes of ours that are no part of this script, and those that remove files for them
  local pid
  for pid in $(pgrep -f "$work/(splitkv|out/\.)"); do
    [ "$pid" = $$ ] || [ "$pid" = $BASHPID ] || echo "$pid"
  done
}

now() { date +%s.%N; }
is_above() { awk "BEGIN { exit !($1 > $2) }"; }

# run COMMAND...: sets code and seconds, since the fault if there was one; what it says goes to $work/said. The clock of last resort
# gives 124.
run() {
  local begin
  checks=$((checks + 1))
  begin=$(now)
  rm -f "$work/hit"
  { timeout -k 2 60 "$@" >"$work/said" 2>&1 </dev/null; } 2>/dev/null
  code=$?
  if [ -e "$work/hit" ]; then begin=$(date -r "$work/hit" +%s.%N); fi
  seconds=$(awk "BEGIN { printf \"%.1f\", $(now) - $begin }")
}

# What holds for every job that fails, whatever was done to it: ends in time, leaves nothing, dies
# by no signal of its own making. Outputs are there as a healthy run writes them, or not at all.
check_ending() {
  local pids name i
  is_above "$seconds" $((timeout + 5)) && failed "took $seconds s, code $code" "$work/said"
  grep -E 'signal (4|6|7|8|11) ' "$work/said" >"$work/died" && failed "died" "$work/said"
  case $code in 132 | 134 | 135 | 136 | 139) failed "code $code: died by a signal" "$work/said" ;; esac
  for ((i = 0; i < 20; i++)); do # Those that were killed may take a moment to go.
    pids=$(left_over)
    [ -n "$pids" ] || break
    sleep 0.1
  done
  if [ -n "$pids" ]; then
    # shellcheck disable=SC2086 # a list
    ps -o pid,stat,args -p $pids >"$work/orphans"
    failed "left processes" "$work/orphans"
    kill -9 $pids
  fi
  for name in $(ls -A "$out"); do
    if [ ! -f "$work/healthy/$name" ] || ! cmp -s "$out/$name" "$work/healthy/$name"; then
      failed "left $name ($(stat -c %s "$out/$name") bytes) in the folder of the outputs"
    fi
  done
  name=$(find "$work/segments" -type f | head -n 3)
  [ -z "$name" ] || failed "left shared memory: $name"
  rm -rf "$out" "$work/segments"
  mkdir "$out" "$work/segments"
}

expect_code() { # CODE...
  local wanted
  for wanted; do [ "$code" = "$wanted" ] && return 0; done
  failed "exit code $code, not $*" "$work/said"
}
expect_text() { # REGEX
  grep -E -q -- "$1" "$work/said" || failed "does not say '$1'" "$work/said"
}
# Ranks that can still talk say what is wrong once.
expect_one_message() {
  [ "$(grep -c '^splitkv: ' "$work/said")" = 1 ] || failed "not one message" "$work/said"
}
expect_hit() {
  [ -e "$work/hit" ] || failed "the fault did not happen: $(tail -n 1 "$work/said")" "$work/said"
  rm -f "$work/hit"
}

# The fault, as variables of the shim, then the command.
shimmed=(env "LD_PRELOAD=$work/shim.so" "SHIM_HIT=$work/hit")

# fault ACTION RANKS RANK NTH CALL TAG ARGUMENTS...
fault() {
  local action=$1 ranks=$2 rank=$3 nth=$4 call=$5 tag=$6
  shift 6
  label="$action rank $rank of $ranks at $call $nth (tag $tag) $*"
  run "${launcher[@]}" -np "$ranks" "${shimmed[@]}" SHIM_DO="$action" SHIM_RANK="$rank" \
    SHIM_NTH="$nth" SHIM_CALL="$call" SHIM_TAG="$tag" "$work/splitkv" "$@"
}

judge() { # ACTION RANK [OR_TEXT]
  expect_hit
  case $1 in
  kill)
    expect_code 137
    expect_text "process rank $2 .*exited on signal 9${3:-}"
    ;;
  stop)
    expect_code 5
    expect_text "rank $2 (has died, stopped|is stopped)"
    ;;
  *) # mpirun's own code and words, or those of a rank that missed it
    expect_code 1 5
    expect_text "process rank $2 |rank $2 (has died, stopped|is gone)${3:-}"
    ;;
  esac
  check_ending
  [ $full = no ] || echo "ok: $label: $seconds s, code $code"
}

# What outputs must look like: remembers those of the job that just ran.
remember_healthy() {
  label="healthy run"
  expect_code 0
  rm -rf "$work/healthy"
  mv "$out" "$work/healthy"
  mkdir "$out"
}
