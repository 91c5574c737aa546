#!/usr/bin/env bash
# Runs test_parity.py with the frameworks that models come from, in a virtual environment of their own; what cannot
# be installed is skipped. `./dev test tasks` calls it; LENSD names the program. The packages are large (gigabytes).
#
#   run.sh FOLDER PYTHON    FOLDER keeps the environment; TASKS_PYTHON: an environment that has them already
set -euo pipefail

folder=$1
python=${TASKS_PYTHON:-$folder/bin/python}
if [ -z "${TASKS_PYTHON:-}" ]; then
    if [ ! -x "$python" ] && ! "$2" -m venv "$folder" >&2; then
        rm -rf "$folder"
        echo "dev: tasks: no virtual environment can be made here (Debian: python3-venv); skipped" >&2
        exit 0
    fi
    "$python" -m pip install -q --disable-pip-version-check 'ultralytics>=8.4' 'transformers>=5' torchvision onnx \
        onnxscript pycocotools >&2 || echo "dev: tasks: the Python registry is out of reach; what is missing is skipped" >&2
fi
# Models of a hundred megabytes take their time to load.
TEST_PATIENCE=${TEST_PATIENCE:-300} exec "$python" "$(dirname -- "$0")/test_parity.py"
