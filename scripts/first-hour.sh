#!/usr/bin/env bash
# A newcomer's first hour in an empty home, as a transcript: README's commands and code as they stand, the
# mistakes that everybody makes, every example that needs no database, and both ends of the Pythons that are
# supported.  Fetches all packages and jars anew; needs ports 9092 and 8741.
set -euo pipefail

checkout=$(cd "$(dirname "$0")/.." && pwd)
home=$(mktemp -d)
started=()
stop() {
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  started=()
}
trap 'stop; rm -rf "$home"' EXIT
unset PYTHONPATH OFFSETMGR_CACHE XDG_CACHE_HOME
export HOME=$home

step() { printf '\n== %s (after %d s)\n' "$1" "$SECONDS"; }

# Run a command and show what it says; fail where its exit status is not $1.
run() {
  local expected=$1 status=0
  shift
  printf '$ %s\n' "$*"
  bash -c "$*" 2>&1 || status=$?
  if ((status != expected)); then
    printf 'ended with status %d, not %d\n' "$status" "$expected" >&2
    exit 1
  fi
}

# Start a command in the background and wait until it prints $1.
start() {
  local mark=$1 log=$home/output-${#started[@]}
  shift
  printf '$ %s &\n' "$*"
  bash -c "exec $*" >"$log" 2>&1 &
  started+=($!)
  until grep -qs "$mark" "$log"; do
    if ! kill -0 "${started[-1]}" 2>/dev/null; then
      cat "$log"
      exit 1
    fi
    sleep 1
  done
  cat "$log"
}

step "A checkout"
mkdir "$home/offsetmgr"
git -C "$checkout" archive HEAD | tar -x -C "$home/offsetmgr"
cd "$home/offsetmgr"

step "Install"
python=$(command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
printf '$ python3 -m venv .venv && . .venv/bin/activate\n'
"$python" -m venv .venv
# shellcheck disable=SC1091 # it was made a line above
. .venv/bin/activate
run 0 "pip install --quiet --disable-pip-version-check '.[server,spark]'"
run 0 offsetmgr --version
mkdir "$home/hour"
cd "$home/hour" # outside the checkout there is only what was installed
cp -r ../offsetmgr/examples .

step "A Kafka and the service"
start "is ready" offsetmgr dev-kafka --topic orders:4 --produce 10000
start serving offsetmgr serve --bootstrap-servers localhost:9092

step "The group before the job"
run 1 offsetmgr kafka-consumer-groups --bootstrap-server localhost:9092 --describe --group orders-etl

step "The README's job"
PYTHONPATH=../offsetmgr/tests/spark python - >job.py <<'PYTHON'
from pathlib import Path

from documents import blocks

print("\n".join(each.text for each in blocks(Path("../offsetmgr/README.md")) if each.language == "python"))
PYTHON
run 0 "python job.py 2>job.log || (cat job.log; exit 1)"

step "The group after the job"
run 0 offsetmgr kafka-consumer-groups --bootstrap-server localhost:9092 --describe --group orders-etl

step "The job again: nothing is new"
run 0 "python job.py 2>job.log || (cat job.log; exit 1)"
run 0 offsetmgr spark reconcile --checkpoint checkpoint --group orders-etl

# Run a line of Python that has to fail, and show its last line.
mistake() {
  printf '>>> %s\n' "$1"
  if python - >mistake.log 2>&1 <<PYTHON
from offsetmgr import OffsetClient
from offsetmgr.spark import starting_offsets
$1
PYTHON
  then
    echo 'it was no mistake' >&2
    exit 1
  fi
  tail -n 1 mistake.log
}

step "A topic that does not exist"
mistake 'starting_offsets(OffsetClient("http://127.0.0.1:8741"), "orders-etl", ["ordres"])'

step "A wrong port of the service"
mistake 'starting_offsets(OffsetClient("http://127.0.0.1:8742"), "orders-etl", ["orders"])'

step "A wrong port of Kafka"
start kafka_unreachable offsetmgr serve --bootstrap-servers localhost:9093 --listen 127.0.0.1:8743

step "A port in use"
run 1 offsetmgr dev-kafka
run 1 offsetmgr serve --bootstrap-servers localhost:9092

step "A negative offset"
mistake 'OffsetClient("http://127.0.0.1:8741").submit("orders-etl", {("orders", 0): -5})'

step "A setting that does not exist"
run 1 offsetmgr config check --set comit.commit_interval_s=1

# Print an interpreter of a release, on PATH or by pyenv.
release() {
  local python
  for python in "python$1" "${PYENV_ROOT:-}/versions/$1".*/bin/python; do
    if "$python" -c '' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  echo "there is no Python $1" >&2
  exit 1
}

step "A service on Python 3.13, and its client on 3.10 without any package"
for each in 3.10 3.13; do
  python=$(release $each)
  run 0 "$python -m venv $each"
done
run 0 "3.13/bin/pip install --quiet --disable-pip-version-check '../offsetmgr[server]'"
run 0 "3.10/bin/pip install --quiet --disable-pip-version-check ../offsetmgr"
start serving 3.13/bin/offsetmgr serve --bootstrap-servers localhost:9092 --listen 127.0.0.1:8744
3.10/bin/python - <<'PYTHON'
from offsetmgr import OffsetClient

with OffsetClient("http://127.0.0.1:8744", name="oldest") as client:
    client.submit("oldest", {("orders", 0): 42}, sync=True, timeout=30)
    print(client.committed("oldest"))
PYTHON

step "Every example"
run 0 "pip install --quiet --disable-pip-version-check '../offsetmgr[all]'"
start "is ready" offsetmgr dev-kafka --port 9192 --topic orders:4
for words in in_process.py emitter_promises.py view_lookup.py streaming_etl.py windowed_revenue.py \
  two_queries.py hourly_batch.py new_checkpoint.py 'stream_on_spark.py --available-now' \
  view_beside_processor.py surviving_writer.py 'batch_writer.py --records 1000'; do
  run 0 "python examples/$words 2>example.log || (cat example.log; exit 1)"
done
start "order 19 in try" python -u examples/order_processor.py

step "The shop"
stop
start "The page" examples/shop/run.sh
run 0 offsetmgr lag --bootstrap-servers localhost:9092
run 0 curl --fail --silent --show-error http://127.0.0.1:8742/v1/keys/lamp

step "Done"
