#!/usr/bin/env bash
# Runs test_clients.py with clients from the Python registry, in a virtual environment of their own; what cannot be
# installed is skipped. `./dev test clients` calls it; LENSD names the program.
#
#   run.sh FOLDER PYTHON    FOLDER keeps the environment
set -euo pipefail

folder=$1
if [ ! -x "$folder/bin/python" ] && ! "$2" -m venv "$folder" >&2; then
    rm -rf "$folder"
    echo "dev: clients: no virtual environment can be made here (Debian: python3-venv); skipped" >&2
    exit 0
fi
"$folder/bin/python" -m pip install -q --disable-pip-version-check 'tritonclient[http,grpc]' aiohttp schemathesis numpy \
    huggingface_hub openai opentelemetry-proto pillow pydoods >&2 ||
    echo "dev: clients: the Python registry is out of reach; what is missing is skipped" >&2
"$folder/bin/python" -m pip install -q --disable-pip-version-check --pre rotel >&2 ||
    echo "dev: clients: rotel does not install here; its test is skipped" >&2
"$folder/bin/python" -m pip install -q --disable-pip-version-check inference-sdk >&2 ||
    echo "dev: clients: inference-sdk does not install here; its tests are skipped" >&2
"$folder/bin/python" -m pip install -q --disable-pip-version-check opencv-python-headless matplotlib validators &&
    "$folder/bin/python" -m pip install -q --disable-pip-version-check --no-deps deepstack-sdk >&2 ||
    echo "dev: clients: deepstack-sdk does not install here; its test is skipped" >&2
exec "$folder/bin/python" "$(dirname -- "$0")/test_clients.py"
