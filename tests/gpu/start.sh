#!/bin/sh
# Starts a program of this folder, wherever the folder lies and whatever system is around it:
#
#     ./lensd serve …            links beside this file name the programs of bin/
#     ./start bench_forward …
#
# Libraries come from lib/. Of CUDA that is cudart; cuBLASLt, half a gigabyte, is found on the machine:
# in LD_LIBRARY_PATH, the linker's cache, a toolkit, or PyTorch's packages. The C library is the
# machine's where it is new enough, else the one in glibc/ (LENSD_GLIBC=own or system decides).
self=$(readlink -f -- "$0" 2>/dev/null) || self=$0
here=$(cd -- "${self%/*}" && pwd) || exit 127
name=${0##*/}
if [ "$name" = start ]; then
    [ $# -gt 0 ] || { ls "$here/bin"; exit 2; }
    name=$1
    shift
fi
program=$here/bin/$name
[ -x "$program" ] || { echo "start: there is no program $program" >&2; exit 127; }

blas=@BLAS@

# The folder of cuBLASLt, unless the linker finds it by itself.
find_blas() {
    old=$IFS
    IFS=:
    for folder in $LD_LIBRARY_PATH; do
        [ -e "$folder/$blas" ] && { IFS=$old; return; }
    done
    IFS=$old
    for tool in ldconfig /sbin/ldconfig; do
        "$tool" -p 2>/dev/null | grep -q "$blas" && return
    done
    for folder in "${CUDA_HOME:-/usr/local/cuda}"/lib64 /usr/local/cuda*/lib64 \
        /usr/local/cuda*/targets/x86_64-linux/lib /opt/cuda/lib64; do
        [ -e "$folder/$blas" ] && { echo "$folder"; return; }
    done
    for python in python3 python; do
        "$python" -c '
import glob, sys
for folder in sys.path:
    for file in glob.glob(folder + "/nvidia/*/lib/" + sys.argv[1]):
        print(file.rpartition("/")[0])
        sys.exit()
' "$blas" 2>/dev/null && return
    done
}

if [ -n "$blas" ] && [ -z "${LENSD_CUDA_MODULE:-}" ]; then
    for folder in "$(find_blas)" /usr/local/nvidia/lib64; do
        [ -d "$folder" ] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    done
    [ -z "${LD_LIBRARY_PATH:-}" ] || export LD_LIBRARY_PATH
fi

glibc=${LENSD_GLIBC:-}
if [ -z "$glibc" ]; then
    if "$here/bin/lensd" --version >/dev/null 2>&1; then glibc=system; else glibc=own; fi
fi
[ "$glibc" = own ] || exec "$program" "$@"

# A program that is started through a loader of its own cannot ask the system where it lies.
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-1000}"
if [ -z "${LENSD_CUDA_MODULE:-}" ] && [ -e "$here/lib/lensd/lensd_cuda.so" ]; then
    for folder in /usr/local/nvidia/lib64 /usr/lib/x86_64-linux-gnu /usr/lib64; do
        [ -e "$folder/libcuda.so.1" ] && export LENSD_CUDA_MODULE="$here/lib/lensd/lensd_cuda.so"
    done
fi
exec "$here/glibc/@LOADER@" --library-path \
    "$here/glibc:$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$program" "$@"
