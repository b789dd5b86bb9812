#!/usr/bin/env bash
# Builds what is released into dist: the wheel, the source archive, and offsetmgr.cdx.json, a CycloneDX
# list of what the image has: deploy/requirements.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

rm -rf dist build/release
scripts/make-venv.sh build/release/tools
build/release/tools/bin/pip install --quiet --disable-pip-version-check 'build>=1.2' 'cyclonedx-bom>=7' 'twine>=6'
build/release/tools/bin/python -m build --outdir dist .
build/release/tools/bin/twine check --strict dist/*

build/release/tools/bin/python -m venv --without-pip build/release/installed
install=(build/release/tools/bin/pip --python build/release/installed/bin/python
  --disable-pip-version-check install --quiet)
"${install[@]}" --require-hashes -r deploy/requirements.txt
"${install[@]}" --no-deps dist/*.whl
build/release/tools/bin/cyclonedx-py environment --pyproject pyproject.toml \
  --output-reproducible --output-file dist/offsetmgr.cdx.json build/release/installed/bin/python
ls -l dist
