#!/usr/bin/env bash
# Make sure that PostgreSQL's server is installed: the tests of offset stores start one.
set -euo pipefail

has_postgres() {
  command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null ||
    compgen -G '/usr/pgsql-*/bin/initdb' >/dev/null
}

give_up() {
  echo "PostgreSQL's server is needed and was not found: $1, then run make again" >&2
  exit 1
}

install_with() {
  local advice=$1
  shift
  if ((EUID == 0)); then
    "$@" || give_up "$advice"
  elif sudo -n true 2>/dev/null; then
    sudo -n "$@" || give_up "$advice"
  else
    give_up "$advice"
  fi
}

has_postgres && exit 0
if command -v apt-get >/dev/null; then
  advice="run 'apt-get install postgresql' as root"
  install_with "$advice" apt-get update -qq
  install_with "$advice" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends postgresql
elif command -v dnf >/dev/null; then
  install_with "run 'dnf install postgresql-server' as root" dnf install -y -q postgresql-server
elif command -v apk >/dev/null; then
  install_with "run 'apk add postgresql' as root" apk add -q postgresql
elif command -v brew >/dev/null; then
  brew install -q postgresql || give_up "run 'brew install postgresql'"
fi
has_postgres || give_up "install PostgreSQL"
