#!/usr/bin/env bash
# Formatting, clang-tidy and the order of the layers, for ./dev.
#
#   lint.sh list                   the C sources
#   lint.sh format JOBS            formatting and layers
#   lint.sh tidy|all JOBS BUILD    clang-tidy, or everything; BUILD is configured for clang, its headers generated
#
# Each file is one check of a tool; ends with "N passed, N failed, N skipped".
set -euo pipefail

root=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd)
mode=$1 jobs=${2:-1} build=${3:+$(cd -- "$3" && pwd)}
cd -- "$root"

sources() {
    find engine proto models server tests \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -type f | sort
}

if [ "$mode" = list ]; then
    sources
    exit
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# check_file TOOL FILE: one line "ok" or "not ok" on the log; what the tool says goes to the screen.
check_file() {
    local tool=$1 file=$2 output status=0
    case $tool in
    clang-format) output=$(clang-format-14 --dry-run --Werror --ferror-limit=3 "$file" 2>&1) || status=$? ;;
    clang-tidy) output=$(clang-tidy-14 --quiet -p "$LINT_BUILD" "$file" 2>/dev/null) || status=$? ;;
    esac
    if [ "$status" -eq 0 ]; then
        echo ok >>"$LINT_LOG"
    else
        echo "not ok" >>"$LINT_LOG"
        printf '%s\n' "$output" | sed "s|$PWD/||g"
        echo "lint: $tool is not content with $file"
    fi
}

# Many files at once, which is ten times as fast; one by one where something is wrong.
check_formats() {
    local file
    if clang-format-14 --dry-run --Werror "$@" 2>/dev/null; then
        printf 'ok\n%.0s' "$@" >>"$LINT_LOG"
    else
        for file in "$@"; do check_file clang-format "$file"; done
    fi
}
export -f check_file check_formats
export LINT_BUILD=$build LINT_LOG=$log

if [ "$mode" != tidy ]; then
    sources | xargs -r -P "$jobs" -n 16 bash -c 'check_formats "$@"' _
    if tests/check_layers.sh; then echo ok >>"$log"; else echo "not ok" >>"$log"; fi
fi

if [ "$mode" != format ]; then
    # Once a file, however many times it is compiled; generated code is not ours.
    /usr/bin/env python3 - "$build" "$root" <<'PYTHON' | xargs -r -P "$jobs" -I{} bash -c 'check_file clang-tidy {}'
import json, os, sys
build, root = sys.argv[1:]
with open(os.path.join(build, "compile_commands.json")) as file:
    paths = {os.path.relpath(os.path.realpath(os.path.join(e["directory"], e["file"])), root)
             for e in json.load(file)}
for path in sorted(paths):
    if not path.startswith("build") and path.split("/")[0] in ("engine", "proto", "models", "server"):
        print(path)
PYTHON
fi

passed=$(grep -cx 'ok' "$log" || true)
failed=$(grep -cx 'not ok' "$log" || true)
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
