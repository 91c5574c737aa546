#!/usr/bin/env bash
# Makes one archive of lensd for any Linux of this architecture (kernel 4.18 or later): the program, the dynamic loader and every
# library that it needs, a script that starts it (docker/tarball/lensd), licences, and a list of its contents (SPDX).
#
#   tarball.sh BUILD FOLDER [PREFIX]    BUILD: a Meson build folder with server/lensd; FOLDER: where the archive and its
#                                       checksum go; PREFIX: of the tools of another CPU (aarch64-linux-gnu-), run by
#                                       `tests/arm64.sh run`
#
# The same program and packages give the same bytes. It is an error if the archive has more than 25 MB.
set -euo pipefail

tree=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd)
build=${1:?a build folder} folder=$(realpath -m -- "${2:?a folder}") prefix=${3:-}
version=$(sed -n "s/^  version: '\(.*\)',$/\1/p" "$tree/meson.build")
machine=${prefix%%-*}
machine=${machine:-$(uname -m)}
[ -z "$prefix" ] || export DPKG_ADMINDIR=$QEMU_LD_PREFIX/var/lib/dpkg
name=lensd-$version-linux-$machine work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$tree" log -1 --format=%ct 2>/dev/null || stat -c %Y "$tree/CHANGELOG.md")}
export SOURCE_DATE_EPOCH

cp "$build/server/lensd" "$work/lensd"
"${prefix}strip" "$work/lensd"
# Libraries that lensd loads at run time if they exist: for WebP.
packages=$(sh "$tree/docker/collect.sh" "$work/lensd" "$work/$name" libwebp.so.7)
cd "$work/$name"
# shellcheck disable=SC2086  # names are words
sh "$tree/docker/sbom.sh" usr/bin/lensd "$version" $packages >sbom.spdx.json
# The archive needs no user and no folder for models.
rm -rf etc tmp models
loader=$(readelf -l usr/bin/lensd | sed -n 's/.*program interpreter: \/\(.*\)\]/\1/p')
libraries=$(find usr/lib -name libc.so.6 -printf '%h')
sed -e "s|@LOADER@|$loader|" -e "s|@LIBRARIES@|$libraries|" "$tree/docker/tarball/lensd" >lensd
chmod 755 lensd
cp "$tree/LICENSE" "$tree/README.md" "$tree/CHANGELOG.md" .
find . -type f ! -name lensd ! -name 'ld-linux*' -exec chmod 644 {} +

mkdir -p "$folder"
cd "$work"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" | xz -T1 -6 >"$folder/$name.tar.xz"
cd "$folder"
sha256sum "$name.tar.xz" >"$name.tar.xz.sha256"
bytes=$(stat -c %s "$name.tar.xz")
[ "$bytes" -le 25000000 ] || { echo "tarball: $name.tar.xz has $bytes bytes; the limit is 25,000,000" >&2; exit 1; }
echo "$folder/$name.tar.xz"
