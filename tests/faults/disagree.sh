#!/bin/bash
# Ranks that were given different work, files or versions: all of them end with one message before
# any data moves. And a launcher that does not belong to this MPI.
. "$(dirname "$0")/common.bash"
need_mpi
base=(--shape "4,2,32" --tokens 900 --causal --leaf 64 --block 64 --threads 1 --timeout "$timeout")

for dim in 32 48; do
  "$work/splitkv" make --shape "4,2,$dim" --tokens 300 --seed 7 --out "$work/$dim.safetensors" ||
    failed "make"
done
files() { # DIM
  echo "--q $work/$1.safetensors:q --k $work/$1.safetensors:k --v $work/$1.safetensors:v"
}

# differ CODES TEXT COMMON -- OF_RANK_1: rank 1 of 3 gets other arguments than ranks 0 and 2.
differ() {
  local codes=$1 text=$2 program=${program:-$work/splitkv}
  shift 2
  local same=() other=()
  while [ "$1" != -- ]; do same+=("$1") && shift; done
  shift
  other=("$@")
  label="rank 1: ${other[*]}; others: ${same[*]}"
  run "${launcher[@]}" -np 1 "$work/splitkv" "${same[@]}" : -np 1 "$program" "${other[@]}" : \
    -np 1 "$work/splitkv" "${same[@]}"
  # shellcheck disable=SC2086 # a list
  expect_code $codes
  expect_text "$text"
  check_ending
}
refuse() { # the same, and one message
  differ "$@"
  expect_one_message
}

prefill=(prefill "${base[@]}" --out "$out/o.npy")
refuse 4 "'--seed' is 0 on rank 0, 8 on rank 1" "${prefill[@]}" -- "${prefill[@]}" --seed 8
refuse 4 "is .* on rank 0, .* on rank 1" "${prefill[@]}" -- "${prefill[@]}" --layout blocks:3
refuse 4 "is .* on rank 0, .* on rank 1" "${prefill[@]}" -- "${prefill[@]}" --reduce tree
refuse 4 "is .* on rank 0, .* on rank 1" "${prefill[@]}" -- "${prefill[@]}" --softcap 20
refuse 4 "is .* on rank 0, .* on rank 1" "${prefill[@]}" -- "${prefill[@]}" --chunk 100
refuse 4 "is .* on rank 0, .* on rank 1" "${prefill[@]}" -- "${prefill[@]}" --order free
refuse 4 "is .* on rank 0, .* on rank 1" "${prefill[@]}" -- "${prefill[@]}" --check
refuse 4 "is .* on rank 0, .* on rank 1" "${prefill[@]}" -- "${prefill[@]}" --order-log "$out/log"
refuse 4 "is .* on rank 0, .* on rank 1" "${prefill[@]}" -- "${prefill[@]}" --lse "$out/lse.npy"
refuse 4 "is .* on rank 0, .* on rank 1" prefill "${base[@]}" -- "${prefill[@]}"
refuse 4 "is .* on rank 0, .* on rank 1" "${prefill[@]}" -- decode "${base[@]}"
refuse 2 "rank 1: .*--cusal" "${prefill[@]}" -- "${prefill[@]}" --cusal
# shellcheck disable=SC2046 # words
{
  refuse 4 "is .* on rank 0, .* on rank 1" prefill $(files 32) --timeout "$timeout" \
    --out "$out/o.npy" -- prefill $(files 48) --timeout "$timeout" --out "$out/o.npy"
  refuse 7 "rank 1: .*absent.npy" prefill $(files 32) --timeout "$timeout" --out "$out/o.npy" \
    -- prefill $(files 32 | sed 's/--v [^ ]*/--v absent.npy/') --timeout "$timeout" \
    --out "$out/o.npy"
}
# Another version: the same program, but for what it calls itself.
version=$("$work/splitkv" --version | cut -d ' ' -f 2)
LC_ALL=C sed "s/${version//./\\.}/${version%.*}.X/g" "$work/splitkv" >"$work/splitkv-other"
chmod +x "$work/splitkv-other"
program=$work/splitkv-other refuse 4 "'version' is" "${prefill[@]}" -- "${prefill[@]}"

# Commands that talk of other things: nobody understands anybody, but they end, and say so.
differ "4 5" "rank" "${prefill[@]}" -- verify --timeout "$timeout"
# (The one that talks to nobody ends well and at once; once in many runs Open MPI then ended the
# others without a word of its own, so only the code is asked for.)
differ "1 5" "" "${prefill[@]}" -- account --shape llama3-8b --tokens 8192
# Patience may differ, and so may threads.
differ 4 "'timeout in ms' is" "${prefill[@]}" -- prefill "${base[@]/$timeout/9}" \
  --out "$out/o.npy"
run "$work/splitkv" "${prefill[@]}"
remember_healthy
differ 0 "^bits" "${prefill[@]}" -- prefill "${base[@]/1/2}" --out "$out/o.npy"

# The launcher belongs to another MPI: each process is rank 0 of 1, and says so once.
for names in "OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK" "PMI_SIZE PMI_RANK" \
  "SLURM_STEP_NUM_TASKS SLURM_PROCID"; do
  for rank in 0 1; do
    label="launched by another MPI ($names), rank $rank"
    run env "${names% *}=2" "${names#* }=$rank" "$work/splitkv" "${prefill[@]}"
    expect_code 2
    if [ $rank = 0 ]; then expect_text "started 2 processes .*rank 0 of 1"; fi
    check_ending
  done
done
finish
