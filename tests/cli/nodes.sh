#!/bin/bash
# Two nodes played by two network namespaces: mpirun reaches the second by an agent in place of ssh, ranks
# talk over TCP, and the bits are those of one process. tune then measures the links between nodes. Needs
# root and ip.
source "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] && command -v ip >/dev/null && command -v unshare >/dev/null ||
  { echo "needs root, ip and unshare"; exit 77; }
here=skv$$a there=skv$$b
trap 'ip netns del $here; ip netns del $there; rm -rf "$folder"' EXIT
ip netns add $here && ip netns add $there &&
  ip link add skvA$$ netns $here type veth peer name skvB$$ netns $there 2>err ||
  { ip netns del $here 2>/dev/null; ip netns del $there 2>/dev/null; trap - EXIT; rm -rf "$folder"
    echo "no network namespaces here"; exit 77; }
for side in "$here skvA$$ 10.77.0.1" "$there skvB$$ 10.77.0.2"; do
  read -r name link address <<<"$side"
  ip -n "$name" addr add "$address/24" dev "$link"
  ip -n "$name" link set "$link" up
  ip -n "$name" link set lo up
done
cat >agent <<END
#!/bin/bash
# agent HOST COMMAND...: what ssh would do
shift
exec ip netns exec $there unshare -u bash -c 'hostname nodeb; eval "\$@"' bash "\$@"
END
chmod +x agent
export here
nodes() { # ARGUMENTS...: two ranks on each node
  ip netns exec "$here" unshare -u bash -c 'hostname nodea; exec "$@"' bash mpirun --mca plm_rsh_agent \
    "$PWD/agent" --mca oob_tcp_if_include 10.77.0.0/24 --mca btl_tcp_if_include 10.77.0.0/24 \
    --mca btl self,vader,tcp --mca pml ob1 --bind-to none --oversubscribe --host 10.77.0.1:2,10.77.0.2:2 \
    -np 4 "$splitkv" "$@"
}
export -f nodes
seeded="prefill --shape 4,2,32 --tokens 900 --leaf 64 --block 64 --causal"
expect 0 "" "$splitkv" $seeded
bits=$(bits_of)
for path in "--direction pass-q --reduce butterfly" "--direction pass-kv --reduce ring"; do
  expect 0 "" nodes $seeded $path
  [ "$(bits_of)" = "$bits" ] || fail "$path: $(bits_of), not $bits"
done
expect 0 "" nodes tune --quick --out figures.json
grep -q '"between_nodes":.*"measured"' figures.json || fail "nodes were not seen: $(cat figures.json err)"
grep -q '"node_ranks":.*2' figures.json || fail "not two ranks to a node: $(cat figures.json)"
finish
