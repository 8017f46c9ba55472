#!/bin/bash
# Files that cannot be read, lie, shrink, or find no room: all ranks end alike, with one message that
# names the file, and leave nothing.
. "$(dirname "$0")/common.bash"
need_mpi
build_shim mpicc -DSHIM_MPI

"$work/splitkv" make --shape 4,2,32 --tokens 900 --seed 7 --out "$work/x.safetensors" || failed make
x=$work/x.safetensors
cp "$x" "$work/copy.safetensors"
options=(--causal --leaf 64 --block 64 --threads 1 --timeout "$timeout")

# job CODE TEXT Q K V OPTIONS...: three ranks.
job() {
  local code_wanted=$1 text=$2
  label="q $3, k $4, v $5, ${*:6}"
  run "${launcher[@]}" -np 3 "$work/splitkv" prefill --q "$3" --k "$4" --v "$5" \
    "${options[@]}" "${@:6}"
  expect_code "$code_wanted"
  expect_text "$text"
  expect_one_message
  check_ending
}
outputs=(--out "$out/o.npy" --lse "$out/lse.npy")

# ---- inputs ----
job 7 "absent.safetensors: .*No such file" "$x:q" "$work/absent.safetensors:k" "$x:v" "${outputs[@]}"
job 3 "no tensor" "$x:q" "$x:nothing" "$x:v" "${outputs[@]}"
mkdir "$work/folder.npy"
job 7 "folder.npy" "$x:q" "$work/folder.npy" "$x:v" "${outputs[@]}"
mkfifo "$work/pipe.npy"
job 7 "pipe.npy" "$x:q" "$work/pipe.npy" "$x:v" "${outputs[@]}"
head -c 100000 "$x" >"$work/short.safetensors"
job 3 "short.safetensors" "$x:q" "$work/short.safetensors:k" "$x:v" "${outputs[@]}"
LC_ALL=C sed '1s/"F32"/"F16"/' "$x" >"$work/lying.safetensors"
job 3 "lying.safetensors" "$work/lying.safetensors:q" "$x:k" "$x:v" "${outputs[@]}"
: >"$work/empty.npy"
job 3 "empty.npy" "$x:q" "$work/empty.npy" "$x:v" "${outputs[@]}"
if [ "$(id -u)" != 0 ]; then
  cp "$x" "$work/secret.safetensors"
  chmod 000 "$work/secret.safetensors"
  job 7 "secret.safetensors: .*Permission denied" "$x:q" "$work/secret.safetensors:k" "$x:v"
fi
# A disk that fails under one rank.
label="rank 2 cannot read"
run "${launcher[@]}" -np 3 "${shimmed[@]}" SHIM_RANK=2 SHIM_CALL=pread SHIM_NTH=7 SHIM_DO=fail:5 \
  "$work/splitkv" prefill --q "$x:q" --k "$x:k" --v "$x:v" "${options[@]}" "${outputs[@]}"
expect_hit
expect_code 7
expect_text "rank 2: .*x.safetensors.*Input/output error"
expect_one_message
check_ending
# The file shrinks between its header and its data: each rank waits a second before it reads.
label="an input shrinks"
cp "$x" "$work/shrinks.safetensors"
(
  while [ ! -e "$work/hit" ]; do sleep 0.05; done
  truncate -s 4096 "$work/shrinks.safetensors"
) &
run "${launcher[@]}" -np 3 "${shimmed[@]}" SHIM_CALL=mmap SHIM_DO=delay:1000 "$work/splitkv" \
  prefill --q "$work/shrinks.safetensors:q" --k "$x:k" --v "$x:v" "${options[@]}" "${outputs[@]}"
wait
expect_hit
expect_code 3 7
expect_text "shrinks.safetensors"
expect_one_message
check_ending

# ---- outputs ----
inputs=("$x:q" "$x:k" "$x:v")
job 7 "folder.npy: is a directory" "${inputs[@]}" --out "$work/folder.npy" --lse "$out/lse.npy"
job 7 "folder.npy: is a directory" "${inputs[@]}" --out "$out/o.npy" --lse "$work/folder.npy"
job 7 "absent/o.npy: its folder cannot be opened" "${inputs[@]}" --out "$out/absent/o.npy"
job 7 "/dev/full: is a device" "${inputs[@]}" --out /dev/full
job 3 "is an input" "${inputs[@]}" --out "$x"
job 7 "folder.npy: is a directory" "${inputs[@]}" --order-log "$work/folder.npy"
label="inputs"
cmp "$x" "$work/copy.safetensors" || failed "an input was changed"

# No room: a limit on the size of files, one rank that cannot write, a file system of 8 KiB.
run bash -c 'ulimit -f 64; exec "$@"' bash "$work/splitkv" make --shape 4,2,32 --tokens 900 \
  --out "$out/x.safetensors"
label="limit on the size of files"
expect_code 7
expect_text "cannot be written: File too large"
check_ending
label="rank 1 cannot write"
run "${launcher[@]}" -np 3 "${shimmed[@]}" SHIM_RANK=1 SHIM_CALL=pwrite SHIM_NTH=2 SHIM_DO=fail:28 \
  "$work/splitkv" prefill --q "$x:q" --k "$x:k" --v "$x:v" "${options[@]}" "${outputs[@]}"
expect_hit
expect_code 7
expect_text "rank 1: .* cannot be written: No space left"
expect_one_message
check_ending
mkdir "$work/disk"
if [ "$(id -u)" = 0 ] && mount -t tmpfs -o size=8k tmpfs "$work/disk" 2>/dev/null; then
  job 7 "o.npy: cannot be written: No space left" "${inputs[@]}" --out "$work/disk/o.npy"
  job 7 "lse.npy: cannot be written: No space left" "${inputs[@]}" --out "$out/o.npy" \
    --lse "$work/disk/lse.npy"
  job 7 "log.*: cannot be written: No space left" "${inputs[@]}" --order-log "$work/disk/log"
  label="what is left on the full disk"
  [ -z "$(ls -A "$work/disk")" ] || failed "$(ls -A "$work/disk")"
  umount "$work/disk"
else
  echo "not root, or no mount: no full disk"
fi
label="standard output is a full disk"
run bash -c '"$@" >/dev/full' bash "$work/splitkv" prefill --shape 4,2,32 --tokens 100
expect_code 7
expect_text "standard output"
check_ending
finish
