/* commands.c: the subcommands and how they are used, in the order of the help. */
#include <string.h>

#include "launch/options.h"

const skv__command_t skv__commands[] = {
    {"prefill", skv__cmd_prefill, "", "attention of a whole sequence, keys sharded over the ranks",
     "  mpirun -np 4 splitkv prefill --q q.npy --k k.npy --v v.npy --causal --out o.npy --lse "
     "l.npy\n"
     "  mpirun -np 3 splitkv prefill --q x.safetensors:q --k x.safetensors:k --v x.safetensors:v "
     "\\\n"
     "      --layout zigzag --reduce butterfly --check\n"
     "  mpirun -np 4 splitkv prefill --shape llama3-8b --tokens 16k --dtype bf16 --seed 7 "
     "--causal\n"
     "  splitkv prefill --shape 8,2,64 --tokens 4k --chunk 512 --causal\n"},
    {"decode", skv__cmd_decode, "", "attention of the last few queries over sharded keys",
     "  mpirun -np 4 splitkv decode --shape 32,8,128 --tokens 100000 --queries 1\n"
     "  splitkv decode --shape 32,8,128 --tokens 64k --dtype fp16 --check\n"},
    {"verify", skv__cmd_verify, "", "ranks x layouts x paths: same bits, error against fp64",
     "  mpirun -np 8 splitkv verify\n"
     "  splitkv verify --json\n"},
    {"plan", skv__cmd_plan, "", "what a run would do: shards, rounds, bytes, predicted time",
     "  splitkv plan --tokens 1M --ranks 4096 --layout zigzag --reduce tree\n"
     "  splitkv plan --tokens 64k --ranks 6 --dot tree.dot\n"},
    {"account", skv__cmd_account, "", "FLOP, bytes, intensity and time floors of attention",
     "  splitkv account --shape llama3-8b --tokens 8192 --gpu h100\n"},
    {"merge", skv__cmd_merge, "", "merge two (O, LSE) pairs of disjoint keys",
     "  splitkv merge --a-out a.npy --a-lse al.npy --b-out b.npy --b-lse bl.npy \\\n"
     "      --out o.npy --lse l.npy\n"},
    {"diff", skv__cmd_diff, "A.npy B.npy", "compare two tensors bit by bit",
     "  splitkv diff a.npy b.npy\n"},
    {"make", skv__cmd_make, "", "write seeded q, k, v to a file",
     "  splitkv make --shape 32,8,128 --tokens 8k --seed 7 --out x.safetensors\n"},
    {"replay", skv__cmd_replay, "ORDER.jsonl",
     "re-evaluate a recorded reduction and name the first node that differs",
     "  splitkv replay order.jsonl\n"},
    {"info", skv__cmd_info, "", "version, build parts, GPUs, CPUs, NUMA, binding, order",
     "  splitkv info\n"
     "  mpirun -np 2 splitkv info --json\n"},
    {"tune", skv__cmd_tune, "", "measure kernels and links for --tuned; changes no bit",
     "  mpirun -np 4 splitkv tune --out host.json\n"
     "  mpirun -np 4 splitkv prefill --shape 8,2,64 --tokens 4k --tuned host.json\n"},
    {NULL, NULL, NULL, NULL, NULL}};

const skv__command_t *skv__command_find(const char *name) {
  for (const skv__command_t *command = skv__commands; command->name; ++command)
    if (strcmp(command->name, name) == 0)
      return command;
  return NULL;
}
