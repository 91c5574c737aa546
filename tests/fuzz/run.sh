#!/usr/bin/env bash
# Fuzzes every target of a build with -Dfuzz=true: run.sh BUILD SECONDS (altogether).
#
# Starts from the seeds in corpus/NAME and, where it is there, the ONNX corpus beside the
# repository. What is found new stays in BUILD/fuzz/NAME; a crash is written to BUILD/fuzz and its
# path printed: put it into corpus/NAME with the fix.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
build=$(cd -- "$1" && pwd)
seconds=$2
shared=${LENSD_SHARED:-$here/../../../shared}

targets=()
for target in "$build"/tests/fuzz/fuzz_*; do
    [ -f "$target" ] && [ -x "$target" ] && targets+=("$target")
done
[ ${#targets[@]} -gt 0 ] || { echo "fuzz: no targets in $build; configure with -Dfuzz=true" >&2; exit 2; }
each=$((seconds / ${#targets[@]}))
[ "$each" -ge 1 ] || each=1

passed=0 failed=0
for target in "${targets[@]}"; do
    name=${target##*/fuzz_}
    mkdir -p "$build/fuzz/$name"
    seeds=("$here/corpus/$name")
    if [ "$name" = onnx ] && [ -d "$shared/onnx-cases/malformed" ]; then
        # libFuzzer wants flat folders of files.
        mkdir -p "$build/fuzz/shared"
        find "$shared/onnx-cases" -name '*.onnx' -size -16k -print0 |
            while IFS= read -r -d '' file; do
                ln -sf "$file" "$build/fuzz/shared/$(sha1sum <"$file" | cut -c1-16)"
            done
        seeds+=("$build/fuzz/shared")
    fi
    echo "fuzz: $name for $each s"
    log=$build/fuzz/$name.log
    if "$target" -max_total_time="$each" -timeout=60 -rss_limit_mb=4096 -max_len=65536 \
        -print_final_stats=1 -artifact_prefix="$build/fuzz/$name-" \
        "$build/fuzz/$name" "${seeds[@]}" >"$log" 2>&1; then
        grep -E 'number_of_executed_units|new_units_added' "$log" || true
        passed=$((passed + 1))
    else
        tail -60 "$log"
        echo "fuzz: $name FAILED; the input is named above" >&2
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
