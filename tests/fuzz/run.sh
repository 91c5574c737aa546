#!/usr/bin/env bash
# Fuzzes the targets of a build with -Dfuzz=true, as many at a time as there are cores:
# run.sh BUILD SECONDS [NAME …] (altogether; all targets).
#
# Starts from the seeds in corpus/NAME and, where it is there, the ONNX corpus beside the
# repository. What is found new stays in BUILD/fuzz/NAME; a crash is written to BUILD/fuzz and its
# path printed: put it into corpus/NAME with the fix. merge.sh adds what was found to the seeds.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
build=$(cd -- "$1" && pwd)
seconds=$2
shift 2
shared=${LENSD_SHARED:-$here/../../../shared}
jobs=$(nproc)

if [ $# -eq 0 ]; then
    for target in "$build"/tests/fuzz/fuzz_*; do
        if [ -f "$target" ] && [ -x "$target" ]; then set -- "$@" "${target##*/fuzz_}"; fi
    done
fi
for name; do
    [ -x "$build/tests/fuzz/fuzz_$name" ] || { echo "fuzz: there is no target '$name' in $build; configure with -Dfuzz=true" >&2; exit 2; }
done
[ $# -gt 0 ] || { echo "fuzz: no targets in $build; configure with -Dfuzz=true" >&2; exit 2; }
# In rounds of $jobs targets.
each=$((seconds / (($# + jobs - 1) / jobs)))
[ "$each" -ge 1 ] || each=1

fuzz() { # fuzz NAME
    local name=$1 log=$build/fuzz/$1.log seeds=("$here/corpus/$1")
    mkdir -p "$build/fuzz/$name"
    if [ "$name" = onnx ] && [ -d "$shared/onnx-cases/malformed" ]; then
        # libFuzzer wants flat folders of files.
        mkdir -p "$build/fuzz/shared"
        find "$shared/onnx-cases" -name '*.onnx' -size -16k -print0 |
            while IFS= read -r -d '' file; do
                ln -sf "$file" "$build/fuzz/shared/$(sha1sum <"$file" | cut -c1-16)"
            done
        seeds+=("$build/fuzz/shared")
    fi
    if ! "$build/tests/fuzz/fuzz_$name" -max_total_time="$each" -timeout=60 -rss_limit_mb=2048 -max_len=65536 \
        -print_final_stats=1 -artifact_prefix="$build/fuzz/$name-" \
        "$build/fuzz/$name" "${seeds[@]}" >"$log" 2>&1; then
        tail -60 "$log"
        echo "fuzz: $name FAILED; the input is named above"
        return 1
    fi
    awk -v name="$name" '
        /inline 8-bit counters/ { edges = $0; sub(/.*\(/, "", edges); sub(/ .*/, "", edges) }
        $2 == "DONE" { for (i = 3; i < NF; i++) at[$i] = $(i + 1) }
        /^Done / { runs = $2; took = $5 }
        END { printf "fuzz: %-9s %6d s %11d runs %6d of %6d edges\n", name, took, runs, at["cov:"], edges }' "$log"
}

running=0 passed=0 failed=0
finish_one() {
    if wait -n; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    running=$((running - 1))
}
for name; do
    [ "$running" -lt "$jobs" ] || finish_one
    fuzz "$name" &
    running=$((running + 1))
done
while [ "$running" -gt 0 ]; do finish_one; done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
