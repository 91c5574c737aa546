#!/bin/sh
# Starts a program of this folder, wherever the folder lies and whatever system is around it:
#
#     ./lensd serve …            links beside this file name the programs of bin/
#     ./start bench_forward …
#     ./start --libraries        the LD_LIBRARY_PATH that they get
#
# Libraries come from lib/. Of CUDA that is cudart; cuBLASLt, half a gigabyte, is found on the machine:
# in LD_LIBRARY_PATH, the linker's cache, a toolkit, or NVIDIA's packages of a Python (PyTorch brings them).
# LENSD_PYTHON names that Python where it is not the one on PATH. The C library is the machine's where it is
# new enough, else the one in glibc/ (LENSD_GLIBC=own or system decides).
self=$(readlink -f -- "$0" 2>/dev/null) || self=$0
here=$(cd -- "${self%/*}" && pwd) || exit 127
name=${0##*/}
if [ "$name" = start ]; then
    [ $# -gt 0 ] || { ls "$here/bin"; exit 2; }
    name=$1
    shift
fi
program=$here/bin/$name
[ -x "$program" ] || [ "$name" = --libraries ] || { echo "start: there is no program $program" >&2; exit 127; }

blas=@BLAS@
driver=/dev/nvidiactl

# Sets `blas_folder`: where cuBLASLt lies, nothing where the linker finds it by itself. Fails when it is nowhere;
# `looked` says where that was.
find_blas() {
    blas_folder='' looked=''
    old=$IFS
    IFS=:
    for folder in ${LD_LIBRARY_PATH:-}; do
        [ -e "$folder/$blas" ] && { IFS=$old; return; }
        looked="$looked $folder"
    done
    IFS=$old
    for tool in ldconfig /sbin/ldconfig; do
        "$tool" -p 2>/dev/null | grep -q "$blas" && return
    done
    for folder in ${CUDA_HOME:+"$CUDA_HOME"/lib64} ${CUDA_PATH:+"$CUDA_PATH"/lib64} /usr/local/cuda/lib64 \
        /usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib /opt/cuda/lib64; do
        [ -e "$folder/$blas" ] && { blas_folder=$folder; return; }
        looked="$looked $folder"
    done
    for python in "${LENSD_PYTHON:-}" ${VIRTUAL_ENV:+"$VIRTUAL_ENV/bin/python3"} \
        ${CONDA_PREFIX:+"$CONDA_PREFIX/bin/python3"} python3 python; do
        python=$(command -v "$python") || continue
        # sys.path has no empty entries left out: '' is this folder, where nothing of NVIDIA's is looked for.
        blas_folder=$("$python" -c '
import glob, sys
for folder in filter(None, sys.path):
    for file in glob.glob(glob.escape(folder) + "/nvidia/*/lib/" + sys.argv[1]):
        print(file.rpartition("/")[0])
        sys.exit()
' "$blas" 2>/dev/null)
        [ -z "$blas_folder" ] || return 0
        looked="$looked $python's-packages"
    done
    return 1
}

if [ -n "$blas" ] && [ -z "${LENSD_CUDA_MODULE:-}" ]; then
    if ! find_blas && [ -e "$driver" ]; then
        case $blas in *.12) package=nvidia-cublas-cu12 ;; *) package=nvidia-cublas ;; esac
        echo "start: $blas is not on this machine, and without it lensd uses no GPU. It was looked for in the linker's" \
            "cache and in$looked. It comes with a CUDA toolkit, with PyTorch, or by pip install $package;" \
            "LD_LIBRARY_PATH names any other folder, LENSD_PYTHON the Python that has it." >&2
    fi
    for folder in "$blas_folder" /usr/local/nvidia/lib64; do
        [ -d "$folder" ] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    done
    [ -z "${LD_LIBRARY_PATH:-}" ] || export LD_LIBRARY_PATH
fi
if [ "$name" = --libraries ]; then
    echo "${LD_LIBRARY_PATH:-}"
    exit
fi

glibc=${LENSD_GLIBC:-}
if [ -z "$glibc" ]; then
    if "$here/bin/lensd" --version >/dev/null 2>&1; then glibc=system; else glibc=own; fi
fi
[ "$glibc" = own ] || exec "$program" "$@"

# A program that is started through a loader of its own cannot ask the system where it lies.
if [ -z "${LENSD_CUDA_MODULE:-}" ] && [ -e "$here/lib/lensd/lensd_cuda.so" ]; then
    for folder in /usr/local/nvidia/lib64 /usr/lib/x86_64-linux-gnu /usr/lib64; do
        [ -e "$folder/libcuda.so.1" ] && export LENSD_CUDA_MODULE="$here/lib/lensd/lensd_cuda.so"
    done
fi
exec "$here/glibc/@LOADER@" --library-path \
    "$here/glibc:$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$program" "$@"
