#!/usr/bin/env bash
# What .ci/run checks. The quick steps come first, so that most mistakes show within minutes. Every step is a process of its
# own, so that one that fails does not hide the next ones; the last line adds up what they counted.
#
# Tests wait for much of their time. What does not depend on time fills it from the start: a second line of steps with the lowest
# priority, which takes what the first line leaves, and whose output comes at the end. The soak's three minutes pass beside the
# containers.
set -euo pipefail

dev=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../dev
totals='^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$'
# Small enough to export for every change; vgg11 and resnet50 are for benches and releases.
families="resnet18 mobilenet_v2 mobilenet_v3_large efficientnet_b0 densenet121 squeezenet1_1 googlenet shufflenet_v2_x1_0"
steps=('lint format' 'test lint unit' "families $families" 'test -lint -unit' asan tsan docker hosts)
beside=docker background='soak --asan 3m'
patient=('lint tidy' 'distros --first-answer')

logs=$(mktemp -d) status=0
trap 'rm -rf "$logs"' EXIT
trap 'exit 130' INT # Ctrl-C; a shell in the background ignores it unless told otherwise

# run STEP: its output is shown and kept.
run() {
    local from=$SECONDS ended=0
    echo "dev: ==== $1 ====" >&2
    # shellcheck disable=SC2086  # a step is a verb and its arguments
    "$dev" $1 2>&1 | tee "$logs/$1" || ended=$?
    finish "$1" "$ended" "$((SECONDS - from))"
}

# later STEP NICENESS: its output is kept, and how it ended.
later() {
    local from=$SECONDS ended=0
    # shellcheck disable=SC2086
    nice -n "$2" "$dev" $1 >"$logs/$1" 2>&1 || ended=$?
    echo "$ended $((SECONDS - from))" >"$logs/$1.end"
}

# show STEP: what later() kept.
show() {
    local ended took=0
    read -r ended took <"$logs/$1.end" || ended=1 # the file is missing or empty: its line was killed
    echo "dev: ==== $1 ====" >&2
    cat "$logs/$1"
    finish "$1" "$ended" "$took"
}

# finish STEP STATUS SECONDS
finish() {
    echo "dev: ==== $1: exit $2 after $3 s ====" >&2
    cat "$logs/$1" >>"$logs/all"
    if [ "$2" -ne 0 ]; then
        status=1
        { echo "==== $1 ===="; python3 "$(dirname -- "$dev")/tests/report.py" failures "$logs/$1"; } >>"$logs/failed"
        # A step that ended before it could count (a failed build) is one failure.
        grep -qE "$totals" "$logs/$1" || printf '0 passed, 1 failed, 0 skipped\n' >>"$logs/all"
    fi
}

export DEV_CI_STEP=1
# No GPU runs these kernels. Optimizing them takes two minutes of CPU time.
export NVCC_APPEND_FLAGS='-Xcicc -O1 -Xptxas -O1'
(trap 'exit 130' INT; for step in "${patient[@]}"; do later "$step" 19; done) &
second=$!
for step in "${steps[@]}"; do
    other=
    if [ "$step" = "$beside" ]; then (trap 'exit 130' INT; later "$background" 0) & other=$!; fi
    run "$step"
    if [ "$other" ]; then
        wait "$other" || true
        show "$background"
    fi
done
wait "$second" || true
for step in "${patient[@]}"; do show "$step"; done
# Every failure with its assertion once more at the end, because the whole output has thousands of lines.
if [ "$status" -ne 0 ]; then
    echo "dev: these steps failed:"
    cat "$logs/failed"
fi
awk -v totals="$totals" '$0 ~ totals { passed += $1; failed += $3; skipped += $5 }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }' "$logs/all"
exit "$status"
