# lib.sh: what the scripts beside it share; sourced, not run.
# shellcheck shell=bash
set -u
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
splitkv=${SKV_TEST_COMMAND:-$project/build/release/splitkv}
[ -x "$splitkv" ] || { echo "no $splitkv: build it first"; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
if [ "$(id -u)" = 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
failures=0

fail() {
  echo "FAIL: $*"
  failures=$((failures + 1))
}

# mpi N ARGUMENTS...: splitkv on N ranks, however many cores there are.
mpi() {
  local ranks=$1
  shift
  mpirun --oversubscribe -np "$ranks" "$splitkv" "$@"
}
export splitkv
export -f mpi

# expect CODE TEXT COMMAND...: its exit status, and a line of splitkv's on stderr that has the
# text (an extended regular expression; "" for none at all), once. stdout goes to the file out.
expect() {
  local code=$1 text=$2 got lines
  shift 2
  timeout 60 bash -c '"$@"' bash "$@" >out 2>err </dev/null # "$@" may be a function
  got=$?
  [ $got = "$code" ] || fail "exit status $got instead of $code: $*: $(head -n 3 err)"
  lines=$(grep -c '^splitkv: ' err)
  if [ -z "$text" ]; then
    [ "$lines" = 0 ] || fail "says something: $*: $(grep '^splitkv: ' err)"
  else
    [ "$lines" = 1 ] || fail "$lines lines instead of 1: $*: $(cat err)"
    grep -Eq "^splitkv: .*($text)" err || fail "lacks \"$text\": $*: $(cat err)"
  fi
}

same() { # FILE FILE
  cmp -s "$1" "$2" || fail "$1 and $2 differ"
}

# The last line of a report: "bits <16 hex digits>".
bits_of() {
  tail -n 1 out | grep -E '^bits [0-9a-f]{16}$' || fail "no bits line: $(tail -n 1 out)"
}

finish() {
  [ $failures = 0 ] && echo PASS
  exit $((failures != 0))
}
