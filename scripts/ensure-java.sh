#!/usr/bin/env bash
# Make sure that a Java 17 or newer is on the PATH: Kafka and Spark run on it.
set -euo pipefail

has_java() {
  local version
  version=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1) || return 1
  [[ -n $version ]] && ((version >= 17))
}

give_up() {
  echo "Java 17 or newer is needed and was not found: $1, then run make again" >&2
  exit 1
}

as_root() {
  if ((EUID == 0)); then
    "$@"
  else
    sudo -n "$@"
  fi
}

install_with() {
  local advice=$1
  shift
  if ((EUID != 0)) && ! sudo -n true 2>/dev/null; then
    give_up "$advice"
  fi
  as_root "$@" || give_up "$advice"
}

has_java && exit 0
if command -v apt-get >/dev/null; then
  advice="run 'apt-get install openjdk-17-jre-headless' as root"
  install_with "$advice" apt-get update -qq
  if apt-cache show openjdk-17-jre-headless >/dev/null 2>&1; then
    package=openjdk-17-jre-headless
  else
    package=default-jre-headless
  fi
  install_with "$advice" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "$package"
elif command -v dnf >/dev/null; then
  install_with "run 'dnf install java-17-openjdk-headless' as root" \
    dnf install -y -q java-17-openjdk-headless
elif command -v apk >/dev/null; then
  install_with "run 'apk add openjdk17-jre-headless' as root" apk add -q openjdk17-jre-headless
elif command -v brew >/dev/null; then
  advice="run 'brew install openjdk@17' and put its bin folder on the PATH"
  brew install -q openjdk@17 || give_up "$advice"
  has_java || give_up "put $(brew --prefix openjdk@17)/bin on the PATH"
fi
has_java || give_up "install a Java runtime 17 or newer and put it on the PATH"
