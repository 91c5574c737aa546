#!/usr/bin/env bash
# Installs Debian packages for ./dev.
#
#   packages.sh PACKAGE…    installs those that are missing; ends at once when none is
set -euo pipefail

say() {
    printf '%s\n' "$*" >&2
}

[ -z "${LENSD_SKIP_PACKAGES:-}" ] || exit 0
# shellcheck source=/dev/null
system=$(. /etc/os-release 2>/dev/null && printf '%s' "${ID:-}${VERSION_ID:-} ${PRETTY_NAME:-this system}") ||
    system="other $(uname -s)"
if ! command -v dpkg-query >/dev/null; then
    say "dev: ./dev knows Debian 12's packages only, and this is ${system#* }. Install the equivalents of: $*; then repeat with LENSD_SKIP_PACKAGES=1."
    exit 2
fi
missing=()
for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [[ $system != "debian12 "* ]]; then
    say "dev: lensd is built and tested on Debian 12, and this is ${system#* }. Install the equivalents of: ${missing[*]}; then repeat with LENSD_SKIP_PACKAGES=1."
    exit 2
fi

say "dev: installing Debian packages: ${missing[*]}"
as_root=() line="  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
if [ "$(id -u)" -ne 0 ]; then
    # Without a terminal sudo cannot ask for a password: only try what works without one.
    if ! command -v sudo >/dev/null || { ! sudo -n true 2>/dev/null && [ ! -t 0 ]; }; then
        say "dev: not root, and sudo is missing or needs a password. Run this as root, then repeat:"
        say "$line"
        exit 2
    fi
    as_root=(sudo)
fi
# The update comes first: old package lists name files that mirrors no longer have.
as_root+=(env DEBIAN_FRONTEND=noninteractive)
if ! "${as_root[@]}" apt-get update -q >&2 ||
    ! "${as_root[@]}" apt-get install -qy --no-install-recommends "${missing[@]}" >&2; then
    say "dev: apt could not install them. Is the network there? The line to repeat as root:"
    say "$line"
    exit 2
fi
