#!/bin/sh
# cuda-toolkit.sh 13-0: compiler, headers and libraries of CUDA from NVIDIA's packages for Debian 12,
# unless there is a toolkit at /usr/local/cuda.
set -eu
version=$1
if [ -x /usr/local/cuda/bin/nvcc ]; then
    /usr/local/cuda/bin/nvcc --version | tail -n 2
    exit 0
fi
apt-get install -qy --no-install-recommends curl
curl -fsSLo /tmp/keyring.deb \
    https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/cuda-keyring_1.1-1_all.deb
dpkg -i /tmp/keyring.deb
apt-get update -q
apt-get install -qy --no-install-recommends "cuda-nvcc-$version" "cuda-cudart-dev-$version" \
    "libcublas-dev-$version"
