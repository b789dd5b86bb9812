#!/usr/bin/env bash
# Make sure that the programs of the system which the tests run are installed: PostgreSQL's server, PgBouncer,
# Chromium and systemd-analyze.
set -euo pipefail

is_there() {
  case $1 in
    postgresql)
      command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null ||
        compgen -G '/usr/pgsql-*/bin/initdb' >/dev/null
      ;;
    pgbouncer) command -v pgbouncer >/dev/null || [[ -x /usr/sbin/pgbouncer ]] ;;
    chromium) command -v chromium >/dev/null || command -v chromium-browser >/dev/null ;;
    systemd) command -v systemd-analyze >/dev/null ;;
  esac
}

# The packages that are missing, by Debian's names.
missing() {
  local package
  for package in postgresql pgbouncer chromium systemd; do
    is_there "$package" || echo "$package"
  done
}

as_root() {
  if ((EUID == 0)); then
    "$@"
  else
    sudo -n "$@"
  fi
}

mapfile -t packages < <(missing)
((${#packages[@]})) || exit 0
if command -v apt-get >/dev/null; then
  as_root apt-get update -qq &&
    as_root env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends "${packages[@]}" || true
elif command -v dnf >/dev/null; then
  as_root dnf install -y -q "${packages[@]/%postgresql/postgresql-server}" || true
elif command -v apk >/dev/null; then
  as_root apk add -q "${packages[@]}" || true
fi
left=$(missing)
[[ -z $left ]] && exit 0
printf 'The tests need these packages, which could not be installed: %s\n' "${left//$'\n'/, }" >&2
echo "Install them as root, then run make again." >&2
exit 1
