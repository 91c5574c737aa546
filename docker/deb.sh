#!/usr/bin/env bash
# Debian packages of this tree for the release that it runs on: lensd, and lensd-cuda where nvcc is found.
#
#   deb.sh [FOLDER]    (default build-deb/packages; what is in it is replaced)
#
# The version is meson.build's, the date that of the last commit. LENSD_GPU_ARCH=sm_90 builds the CUDA module for one architecture.
set -euo pipefail

tree=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd)
work=$tree/build-deb folder=$(realpath -m -- "${1:-$tree/build-deb/packages}") profiles=()
source=$work/lensd

version=$(sed -n "s/^  version: '\(.*\)',$/\1/p" "$tree/meson.build")
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$tree" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
rm -rf "$source" "$work"/*.deb
mkdir -p "$source" "$folder"
git -C "$tree" ls-files -z | tar -C "$tree" --null -T - -cf - | tar -C "$source" --no-same-owner -xf -
cp -r "$tree/docker/debian" "$source/debian"
maintainer=$(sed -n 's/^Maintainer: //p' "$source/debian/control")
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

(cd "$source" && dpkg-buildpackage --build=binary --no-sign ${profiles[@]+"${profiles[@]}"}) >"$work/log" 2>&1 || {
    tail -n 40 "$work/log" >&2
    echo "deb: the packages could not be built; the whole log is $work/log" >&2
    exit 1
}
rm -f "$folder"/lensd*.deb
mv "$work"/lensd*_"$version"_*.deb "$folder"
lintian --fail-on error "$folder"/*.deb
ls "$folder"/*.deb
