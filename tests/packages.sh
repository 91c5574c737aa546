#!/usr/bin/env bash
# Installs Debian packages for ./dev.
#
#   packages.sh PACKAGE…    installs those that are missing; ends at once when none is
set -euo pipefail

say() {
    printf '%s\n' "$*" >&2
}

[ -z "${LENSD_SKIP_PACKAGES:-}" ] || exit 0
ID="other" ID_LIKE="" VERSION_ID="" PRETTY_NAME=$(uname -s)
# shellcheck source=/dev/null
. "${LENSD_OS_RELEASE:-/etc/os-release}" 2>/dev/null || true
missing=()
for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
# apt fails where another installs; CI's two lines of steps do.
if [ -z "${LENSD_PACKAGES_ALONE:-}" ] && command -v flock >/dev/null; then
    LENSD_PACKAGES_ALONE=1 exec flock -o "$0" "$0" "$@"
fi
if [[ " $ID $ID_LIKE " != *" debian "* ]]; then
    say "dev: this is $PRETTY_NAME, and ./dev knows the packages of Debian and its relatives only. Install the equivalents of: ${missing[*]}; then repeat with LENSD_SKIP_PACKAGES=1."
    exit 2
fi
[[ $ID$VERSION_ID =~ ^debian1[23]$ ]] ||
    say "dev: this is $PRETTY_NAME; lensd is tested on Debian 12 and 13. Trying the packages that have the same names here."

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
# The update comes first: old package lists name files that mirrors no longer have. Without --error-on apt-get ends with 0
# where it reached no mirror.
as_root+=(env DEBIAN_FRONTEND=noninteractive)
is_updated=true
"${as_root[@]}" apt-get update -q --error-on=any >&2 || is_updated=false
unknown=()
for package in "${missing[@]}"; do
    apt-cache show "$package" >/dev/null 2>&1 || unknown+=("$package")
done
if $is_updated && [ ${#unknown[@]} -gt 0 ]; then
    say "dev: $PRETTY_NAME has no package ${unknown[*]}. Install the equivalents, then repeat with LENSD_SKIP_PACKAGES=1."
    exit 2
fi
# One mirror of several may be enough.
if [ ${#unknown[@]} -gt 0 ] || ! "${as_root[@]}" apt-get install -qy --no-install-recommends "${missing[@]}" >&2; then
    say "dev: apt could not install them. Is the network there? The line to repeat as root:"
    say "$line"
    exit 2
fi
