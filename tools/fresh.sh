#!/usr/bin/env bash
# tools/fresh.sh [--keep] [SUITE ...]      default: bookworm trixie
# Makes a fresh Debian of each suite with debootstrap, clones this repository's HEAD into it and
# runs what a stranger would type: make run, make test. Needs root and debootstrap. The mirror, its
# settings and the local certificates are this machine's own (or MIRROR=URL).
# --keep leaves the systems lying there and says where.
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)

die() {
  echo "fresh: $*" >&2
  exit 1
}

keep=no
suites=()
for word in "$@"; do
  case "$word" in
    --keep) keep=yes ;;
    -*) sed -n '2,7s/^# //p' "$0" >&2; exit 2 ;;
    *) suites+=("$word") ;;
  esac
done
[ ${#suites[@]} -gt 0 ] || suites=(bookworm trixie)

[ "$(id -u)" -eq 0 ] || die "this takes root: sudo $0"
command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install -y debootstrap"
unshare --mount --pid --fork true || die "this system lets nobody mount or make namespaces"

# targets FORMAT: one line for each package list in this system's apt configuration.
targets() { apt-get indextargets --format "$1" 'Created-By: Packages' 2>/dev/null | sort -u; }
mirror=${MIRROR:-$(targets '$(LABEL) $(REPO_URI)' | awk '$1 == "Debian" { print $2; exit }')}
security=$(targets '$(LABEL) $(REPO_URI)' | awk '$1 == "Debian-Security" { print $2; exit }')
[ -n "$mirror" ] || die "no Debian mirror in this system's apt configuration; set MIRROR=URL"

place=$(mktemp -d "${TMPDIR:-/tmp}/fresh.XXXXXX")
child=
cleanup() {
  trap '' INT TERM
  if [ -n "$child" ]; then
    # unshare blocks the gentler signals; its end takes the whole namespace along.
    kill -KILL "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  fi
  if [ "$keep" = yes ]; then
    echo "fresh: kept in $place"
  else
    rm -rf --one-file-system "$place"
  fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# In namespaces of its own: when it ends or is killed, so do its processes and its mounts. In the
# background, so that a signal is heard at once.
contained() {
  local status=0
  unshare --mount --pid --fork --kill-child "$@" </dev/null &
  child=$!
  wait "$child" || status=$?
  child=
  return "$status"
}

# in_system ROOT COMMAND: with the environment of a fresh login, and this machine's way out.
in_system() {
  local root=$1 passed=() name
  shift
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [ -z "${!name:-}" ] || passed+=("$name=${!name}")
  done
  contained sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$root" \
    env -i HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt "${passed[@]}" sh -c "$*"
}

# What a fresh system on this machine's network would have.
configure() {
  local root=$1 suite=$2
  {
    echo "deb $mirror $suite main"
    echo "deb $mirror $suite-updates main"
    [ -z "$security" ] || echo "deb $security $suite-security main"
  } >"$root/etc/apt/sources.list"
  apt-config dump | grep -E '^Acquire::(http|https|Check-)' >"$root/etc/apt/apt.conf.d/90here" || true
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  cp -L /etc/hosts "$root/etc/hosts"
  in_system "$root" 'apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q install -y \
    --no-install-recommends git make ca-certificates' || return 1
  if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
    mkdir -p "$root/usr/local/share/ca-certificates"
    cp -L /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/"
    in_system "$root" update-ca-certificates || return 1
  fi
  # A stranger has no package lists of ours: the first install must fetch them.
  rm -rf "$root"/var/lib/apt/lists/*
}

# A user without root is told what to type, and nothing is built.
refuses_without_root() {
  local root=$1 said
  said=$(in_system "$root" 'useradd -m stranger && cp -r /root/libkda /home/stranger/ &&
    chown -R stranger: /home/stranger/libkda &&
    ! su stranger -c "make -C /home/stranger/libkda run" 2>&1') || return 1
  grep -E '^  apt-get update && apt-get install -y .*libhwy-dev' <<<"$said"
}

report=()
failed=0
# result SUITE WHAT COMMAND: runs it and notes how it ended.
result() {
  local suite=$1 what=$2 start=$SECONDS
  shift 2
  echo "=== $suite: $what"
  if "$@"; then
    report+=("$suite: $what: ok, $((SECONDS - start)) s")
  else
    report+=("$suite: $what: FAILED, $((SECONDS - start)) s")
    failed=1
    return 1
  fi
}

[ -z "$(git -C "$repo" status --porcelain)" ] ||
  echo "fresh: the working tree has changes; only HEAD, $(git -C "$repo" rev-parse --short HEAD), is tried"

for suite in "${suites[@]}"; do
  root=$place/$suite
  result "$suite" "debootstrap" contained debootstrap --variant=minbase "$suite" "$root" "$mirror" ||
    continue
  result "$suite" "apt, git, make" configure "$root" "$suite" || continue
  result "$suite" "clone" git clone -q --no-hardlinks "$repo" "$root/root/libkda" || continue
  result "$suite" "make run without root" refuses_without_root "$root" || true
  result "$suite" "make run" in_system "$root" 'cd ~/libkda && make run' || true
  result "$suite" "make test" in_system "$root" 'cd ~/libkda && make test' || true
  [ "$keep" = yes ] || rm -rf --one-file-system "$root"
done

echo "=== fresh, at $(git -C "$repo" log -1 --format=%h)"
printf '%s\n' "${report[@]}"
exit "$failed"
