#!/usr/bin/env bash
# Debian packages of this tree for the release that it runs on: lensd, and lensd-cuda where nvcc is found.
#
#   deb.sh [FOLDER]    (default build-deb/packages; what is in it is replaced)
#
# The version is meson.build's and the release that it is built on (0.1.0~deb12), so that an upgraded system prefers the
# package of its new release. The date is that of the last commit, or of CHANGELOG.md in a source archive. DEBFULLNAME
# and DEBEMAIL name the maintainer. LENSD_GPU_ARCH=sm_90 builds the CUDA module for one architecture.
set -euo pipefail

tree=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd)
work=$tree/build-deb folder=$(realpath -m -- "${1:-$tree/build-deb/packages}") profiles=()
source=$work/lensd

# A checkout's tracked files; a source archive has nothing else but what was built in it.
list_sources() {
    if [ -e "$tree/.git" ]; then
        git -C "$tree" ls-files -z
    else
        (cd "$tree" && find . \( -path './build*' -o -path ./.cache \) -prune -o ! -type d -print0)
    fi
}

last_change() {
    if [ -e "$tree/.git" ]; then git -C "$tree" log -1 --format=%ct; else stat -c %Y "$tree/CHANGELOG.md"; fi
}

version=$(sed -n "s/^  version: '\(.*\)',$/\1/p" "$tree/meson.build")
# shellcheck source=/dev/null
version+=$(. /etc/os-release && echo "~${ID/debian/deb}$VERSION_ID")
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(last_change)}
export SOURCE_DATE_EPOCH
rm -rf "$source" "$work"/*.deb
mkdir -p "$source" "$folder"
list_sources | tar -C "$tree" --null -T - -cf - | tar -C "$source" --no-same-owner -xf -
cp -r "$tree/docker/debian" "$source/debian"
maintainer="${DEBFULLNAME:-lensd authors} <${DEBEMAIL:-nobody@lensd.invalid}>"
control=$(<"$tree/docker/debian/control")
printf '%s\n' "${control//@MAINTAINER@/"$maintainer"}" >"$source/debian/control"
printf 'lensd (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- %s  %s\n' \
    "$version" "$maintainer" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")" >"$source/debian/changelog"

# NVIDIA's packages of the toolkit carry its version: 13.0 is 13-0.
PATH=$PATH:/usr/local/cuda/bin
if command -v nvcc >/dev/null; then
    toolkit=$(nvcc --version | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\),.*/\1-\2/p')
    export LENSD_CUDA_PACKAGES="cuda-cudart-$toolkit, libcublas-$toolkit"
else
    echo 'deb: no nvcc: lensd-cuda is left out' >&2
    profiles=(--build-profiles=pkg.lensd.nocuda)
fi

# The build takes minutes. Of its output this shows debhelper's steps, and how far ninja is every 10 seconds.
progress() {
    local line next=0
    while IFS= read -r line; do
        case $line in
        '   dh_'*) line=${line#   } ;;
        '['[0-9]*/*']'*)
            [ "$SECONDS" -ge "$next" ] || continue
            next=$((SECONDS + 10))
            line="built ${line%%]*}]"
            ;;
        *) continue ;;
        esac
        printf 'deb: %s\n' "$line"
    done
}

(cd "$source" && dpkg-buildpackage --build=binary --no-sign ${profiles[@]+"${profiles[@]}"}) 2>&1 |
    tee "$work/log" | progress >&2 || {
    tail -n 40 "$work/log" >&2
    echo "deb: the packages could not be built; the whole log is $work/log" >&2
    exit 1
}
rm -f "$folder"/lensd*.deb
mv "$work"/lensd*_"$version"_*.deb "$folder"
lintian --fail-on error "$folder"/*.deb
ls "$folder"/*.deb
