#!/usr/bin/env bash
# Runs the whole shop until Ctrl-C, with its data and logs in ./shop-data.
#   pip install 'offsetmgr[all]'      and Java 17
# run.sh programs: without Kafka and service, which run already, by compose.yaml for example.
set -euo pipefail

shop=$(cd "$(dirname "$0")" && pwd)
no_bars='--conf spark.ui.showConsoleProgress=false pyspark-shell' # they are for terminals, not for logs
export PYSPARK_SUBMIT_ARGS=${PYSPARK_SUBMIT_ARGS:-$no_bars}
names=()
pids=()

stop() {
  trap - EXIT INT TERM
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do # the last first: Kafka ends after those that use it
    kill "${pids[i]}" 2>/dev/null || true
    wait "${pids[i]}" 2>/dev/null || true
  done
}
trap stop EXIT
trap exit INT TERM

# start NAME TEXT COMMAND...: start a command, and wait until its log has the text.
start() {
  local name=$1 text=$2 log=shop-data/$1.log
  shift 2
  printf '$ %s\n' "$*" >"$log"
  "$@" >>"$log" 2>&1 &
  names+=("$name")
  pids+=($!)
  until tail -n +2 "$log" | grep -q "$text"; do
    if ! kill -0 $! 2>/dev/null; then
      cat "$log" >&2
      exit 1
    fi
    sleep 0.2
  done
  printf '%-9s process %-8s %s\n' "$name" $! "$log"
}

mkdir -p shop-data
if [ "${1:-}" != programs ]; then
  start kafka 'is ready' offsetmgr dev-kafka
  start service '"serving"' offsetmgr serve --bootstrap-servers localhost:9092 \
    --set 'watch.groups=.*' --set streams=http://127.0.0.1:8742
fi
start producer 'is open' python "$shop/producer.py"
start view '"serving"' offsetmgr view serve --table prices --path shop-data/prices \
  --bootstrap-servers localhost:9092
start labels order python -u "$shop/labels.py"
# One after the other: both may have to fetch Spark's connector for Kafka.
start revenue 'batch 0' python "$shop/revenue.py"
start archive 'are archived' python "$shop/archive.py"
start follow archive offsetmgr spark follow --checkpoint shop-data/archive-checkpoint \
  --group shop-archive --interval 5

echo 'The page: http://127.0.0.1:8741    a price: http://127.0.0.1:8742/v1/keys/lamp    stop: Ctrl-C'
while sleep 1; do
  for i in "${!pids[@]}"; do
    if [ -n "${pids[i]}" ] && ! kill -0 "${pids[i]}" 2>/dev/null; then
      echo "${names[i]} has ended: shop-data/${names[i]}.log"
      pids[i]=''
    fi
  done
done
