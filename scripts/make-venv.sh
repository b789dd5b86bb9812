#!/usr/bin/env bash
# Create the virtual environment $1 with a Python that the pinned packages support.
set -euo pipefail

venv=$1
supported='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'

for python in python3.11 python3.12 python3.13 python3; do
  if command -v "$python" >/dev/null && "$python" -c "$supported" 2>/dev/null; then
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
      echo "$python cannot create virtual environments: install its venv module" \
        "(on Debian and Ubuntu: apt-get install python3-venv)" >&2
      exit 1
    fi
    exec "$python" -m venv "$venv"
  fi
done
echo "No Python 3.11, 3.12 or 3.13 found on the PATH: install one of them, then run make again" >&2
exit 1
