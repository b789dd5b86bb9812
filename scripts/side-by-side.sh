#!/usr/bin/env bash
# Run the shell commands $1 and $2 side by side; fail where either fails.
# $1 takes what $2 leaves of the processors; its output is shown as soon as it has ended.
set -euo pipefail

first_status=0 second_status=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Send a signal to all that both have started, as a terminal does with a Ctrl-C.
signal() {
  local group
  for group in $(jobs -p); do
    kill "-$1" -- "-$group" 2>/dev/null || true
  done
}

stop() {
  trap 'signal KILL' INT
  trap '' TERM HUP
  signal "$1"
  wait
  exit "$2"
}
trap 'stop INT 130' INT
trap 'stop TERM 143' TERM HUP

# Job control gives each a process group of its own, in which a Ctrl-C is not ignored.
set -m
nice bash -c "$1" >"$log" 2>&1 </dev/null &
first=$!
bash -c "$2" </dev/null &
second=$!
set +m

wait "$first" || first_status=$?
printf '\n%s\n' "$1"
cat "$log"
wait "$second" || second_status=$?
((first_status)) && printf '\nFailed (exit status %d): %s\n' "$first_status" "$1" >&2
((second_status)) && printf '\nFailed (exit status %d): %s\n' "$second_status" "$2" >&2
((first_status == 0 && second_status == 0))
