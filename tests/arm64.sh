#!/usr/bin/env bash
# What `./dev arm64` needs on an x86-64 machine.
#
#   arm64.sh sysroot FOLDER     Debian's arm64 headers and libraries, and FOLDER.ini, what Meson needs to know of them
#                               beside docker/cross/arm64.ini
#   arm64.sh run FOLDER COMMAND…  runs it where arm64 programs start under qemu-user, with the libraries of FOLDER
#
# qemu-user is registered in a user namespace, so that the machine stays as it is and root is not needed.
# QEMU_CPU=cortex-a72, cortex-a76 … chooses the processor; without it every extension is there.
set -euo pipefail

packages=libc6-dev,libmicrohttpd-dev,libgnutls28-dev,libnghttp2-dev,libsqlite3-dev,zlib1g-dev,libcjson-dev,libprotobuf-c-dev,libjpeg-dev,libpng-dev,libpcre2-dev,libutf8proc-dev,libcriterion-dev
# Loaded where they are there: without them no photo of these formats is read, and no trace is sent.
packages+=,libwebp7,libtiff6,libheif1,libcurl4-openssl-dev
what=${1:?sysroot or run} folder=${2:?a folder}
shift 2

case $what in
sysroot)
    # shellcheck disable=SC2016  # for the hook's shell
    database='for deb in "$1"/var/cache/apt/archives/*.deb; do
        { dpkg-deb -f "$deb"; printf "Status: install ok installed\n\n"; } >>"$1/var/lib/dpkg/status"
        dpkg-deb --fsys-tarfile "$deb" | tar -t | sed "s|^[.]||; s|/\$||; s|^\$|/.|" >"$1/var/lib/dpkg/info/$(dpkg-deb -f "$deb" Package).list"
    done'
    if [ "$(cat "$folder.packages" 2>/dev/null)" != "$packages $database" ]; then
        # shellcheck disable=SC1091  # the system's
        . /etc/os-release
        echo "arm64: fetching Debian's arm64 libraries" >&2
        rm -rf "$folder.new" "$folder" "$folder.packages"
        mkdir -p "${folder%/*}"
        # The hook makes a database for dpkg-query of what is only extracted.
        if ! mmdebstrap --arch=arm64 --variant=extract --extract-hook="$database" --include="$packages" "$VERSION_CODENAME" "$folder.new" >"$folder.log" 2>&1; then
            tail -n 5 "$folder.log" >&2
            exit 1
        fi
        mv "$folder.new" "$folder"
        printf '%s' "$packages $database" >"$folder.packages"
    fi
    cat >"$folder.ini" <<INI
[binaries]
pkgconfig = 'pkg-config'
[built-in options]
c_args = ['--sysroot=$folder']
c_link_args = ['--sysroot=$folder']
[properties]
needs_exe_wrapper = false
sys_root = '$folder'
pkg_config_libdir = '$folder/usr/lib/aarch64-linux-gnu/pkgconfig:$folder/usr/share/pkgconfig'
INI
    ;;
run)
    # shellcheck disable=SC2016  # expanded by the inner shell
    QEMU_LD_PREFIX=$folder exec unshare --user --map-root-user --mount bash -euc '
        mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
        cat /usr/lib/binfmt.d/qemu-aarch64.conf >/proc/sys/fs/binfmt_misc/register
        exec "$@"' _ "$@"
    ;;
*)
    echo "arm64: '$what' is not known" >&2
    exit 2
    ;;
esac
