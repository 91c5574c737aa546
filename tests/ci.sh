#!/usr/bin/env bash
# What .ci/run checks. The quick steps come first, so that most mistakes show within minutes. Every step is a process of its
# own, so that one that fails does not hide the next ones; the last line adds up what they counted. The soak runs beside
# clang-tidy, whose result does not depend on time: its three minutes would not fit otherwise.
set -euo pipefail

dev=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../dev
totals='^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$'
# Small enough to export for every change; vgg11 and resnet50 are for benches and releases.
families="resnet18 mobilenet_v2 mobilenet_v3_large efficientnet_b0 densenet121 squeezenet1_1 googlenet shufflenet_v2_x1_0"
steps=('lint format' 'test lint unit' "families $families" 'test -lint -unit' asan tsan 'lint tidy' docker hosts)
beside='lint tidy' background='soak --asan 3m'

log=$(mktemp) soak=$(mktemp) all=$(mktemp) failed=$(mktemp) status=0
trap 'rm -f "$log" "$soak" "$all" "$failed"' EXIT

# finish STEP LOG STATUS SECONDS
finish() {
    echo "dev: ==== $1: exit $3 after $4 s ====" >&2
    cat "$2" >>"$all"
    if [ "$3" -ne 0 ]; then
        status=1
        { echo "==== $1 ===="; python3 "$(dirname -- "$dev")/tests/report.py" failures "$2"; } >>"$failed"
        # A step that ended before it could count (a failed build) is one failure.
        grep -qE "$totals" "$2" || printf '0 passed, 1 failed, 0 skipped\n' >>"$all"
    fi
}

export DEV_CI_STEP=1
for step in "${steps[@]}"; do
    echo "dev: ==== $step ====" >&2
    from=$SECONDS ended=0 other=
    # shellcheck disable=SC2086  # a step is a verb and its arguments
    if [ "$step" = "$beside" ]; then "$dev" $background >"$soak" 2>&1 & other=$!; fi
    # shellcheck disable=SC2086
    "$dev" $step 2>&1 | tee "$log" || ended=$?
    finish "$step" "$log" "$ended" "$((SECONDS - from))"
    if [ "$other" ]; then
        ended=0
        wait "$other" || ended=$?
        cat "$soak"
        finish "$background" "$soak" "$ended" "$((SECONDS - from))"
    fi
done
# Every failure with its assertion once more at the end, because the whole output has thousands of lines.
if [ "$status" -ne 0 ]; then
    echo "dev: these steps failed:"
    cat "$failed"
fi
awk -v totals="$totals" '$0 ~ totals { passed += $1; failed += $3; skipped += $5 }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }' "$all"
exit "$status"
