#!/usr/bin/env bash
# Runs a program with the frameworks that models come from, in a virtual environment of their own; what cannot be
# installed is skipped. `./dev test tasks` and `./dev test exports` call it; LENSD names the program that serves. The
# packages are large (gigabytes).
#
#   run.sh FOLDER PYTHON PROGRAM [arguments…]    FOLDER keeps the environment; TASKS_PYTHON: one that has them already
set -euo pipefail

folder=$1
base=$2
shift 2
python=${TASKS_PYTHON:-$folder/bin/python}
if [ -z "${TASKS_PYTHON:-}" ]; then
    if [ ! -x "$python" ] && ! "$base" -m venv "$folder" >&2; then
        rm -rf "$folder"
        echo "dev: tasks: no virtual environment can be made here (Debian: python3-venv); skipped" >&2
        exit 0
    fi
    "$python" -m pip install -q --disable-pip-version-check 'ultralytics>=8.4' 'transformers>=5' torchvision 'timm>=1' onnx \
        onnxscript onnxruntime pycocotools scipy opencv-python-headless rapidocr \
        sahi >&2 || echo "dev: tasks: the Python registry is out of reach; what is missing is skipped" >&2
fi
# Models of a hundred megabytes take their time to load.
TEST_PATIENCE=${TEST_PATIENCE:-300} exec "$python" "$@"
