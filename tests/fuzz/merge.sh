#!/usr/bin/env bash
# Adds to corpus/NAME what run.sh found and the seeds do not reach: merge.sh BUILD [NAME …].
#
# Only inputs of at most 2048 bytes that reach a new edge are taken, so that the tree stays small;
# they are named by their hash. Those of an earlier merge are considered again, seeds with other
# names stay.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
build=$(cd -- "$1" && pwd)
shift
# shellcheck disable=SC2046  # names are words
[ $# -gt 0 ] || set -- $(cd -- "$here/corpus" && ls)

for name; do
    scratch=$(mktemp -d)
    mkdir "$scratch/seeds" "$scratch/found" "$scratch/kept"
    find "$build/fuzz/$name" -type f -size -5 -exec cp -t "$scratch/found" {} +
    for seed in "$here/corpus/$name"/*; do
        if [[ ${seed##*/} =~ ^[0-9a-f]{40}$ ]]; then mv "$seed" "$scratch/found"; else cp "$seed" "$scratch/kept"; fi
    done
    # Edges alone: with counters and compared values ten times as many inputs would be new.
    "$build/tests/fuzz/fuzz_$name" -merge=1 -use_counters=0 -max_len=2048 -timeout=10 -rss_limit_mb=2048 \
        "$scratch/kept" "$scratch/found" >"$scratch/log" 2>&1 || { tail -20 "$scratch/log"; exit 1; }
    find "$scratch/kept" -regextype posix-extended -regex '.*/[0-9a-f]{40}' -exec cp -t "$here/corpus/$name" {} +
    echo "merge: $name: $(find "$here/corpus/$name" -type f | wc -l) files, $(du -sb "$here/corpus/$name" | cut -f1) bytes"
    rm -rf "$scratch"
done
