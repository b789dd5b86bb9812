#!/usr/bin/env bash
# Writes deploy/requirements.txt: what the image installs, in the versions of constraints.txt, with the
# hashes of all files of each release.  Run it after a change of either.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/make-venv.sh build/lock
build/lock/bin/pip install --quiet --disable-pip-version-check 'uv>=0.5'
build/lock/bin/uv pip compile --quiet pyproject.toml --extra server --extra sql --extra msk \
  --constraint constraints.txt --universal --python-version 3.11.5 --generate-hashes \
  --no-annotate --no-header --no-emit-index-url --output-file deploy/requirements.txt
