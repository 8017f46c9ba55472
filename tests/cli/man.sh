#!/bin/bash
# Every option and command of --help is in the man page, and the page has no others.
source "$(dirname "$0")/lib.sh"
page=$project/docs/splitkv.1

options_of_page() {
  sed 's/\\-/-/g' "$page" | grep -oE -- '--[a-z][a-z-]*' | sort -u
}
for command in prefill decode verify plan account merge diff make replay info tune; do
  grep -q "splitkv.*$command" "$page" || fail "$command is not in the page"
  "$splitkv" $command --help | grep -oE '^  --[a-z-]+' | tr -d ' '
done | sort -u >helped
[ -s helped ] || fail "no options in --help"
{ cat helped; printf '%s\n' --help --version; } | sort -u >known
options_of_page | grep -vxE -- '--bind-to|--oversubscribe' >written
comm -23 known written | grep . && fail "options that the page lacks (above)"
comm -13 known written | grep . && fail "options that no command has (above)"
if command -v man >/dev/null; then
  LC_ALL=C.UTF-8 man --warnings -l "$page" >/dev/null 2>warnings
  [ ! -s warnings ] || fail "man complains: $(head -n 3 warnings)"
fi
finish
