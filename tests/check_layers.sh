#!/usr/bin/env bash
# The layers of the source (docs/design.md): an include never goes up, headers do not include each other
# in a circle, every library stays in its folders, and every source begins with a comment that says
# what it is for.
#
#   check_layers.sh [TREE]    exit 0 and one line, or exit 1 and every offending line
set -euo pipefail

tree=${1:-$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/..}
cd -- "$tree"
found=0

report() { # report WHY LINES
    [ -n "$2" ] || return 0
    found=1
    printf '%s:\n%s\n' "$1" "$(printf '%s\n' "$2" | sed 's/^/    /')"
}

# includes PATTERN FOLDER…: "file:line:text" of includes that match, in those folders that exist.
includes() {
    local pattern=$1 folder folders=()
    shift
    for folder in "$@"; do
        [ ! -e "$folder" ] || folders+=("$folder")
    done
    [ ${#folders[@]} -gt 0 ] || return 0
    grep -rnE --include='*.[ch]' --include='*.cu' --include='*.cuh' \
        "^[[:space:]]*#[[:space:]]*include[[:space:]]+[<\"]$pattern" "${folders[@]}" || true
}

# Lines whose file is not under one of the given folders.
outside() {
    local folder pattern=
    for folder in "$@"; do
        pattern+="${pattern:+|}^$folder/"
    done
    grep -vE "$pattern" || true
}

# never FOLDER OTHER: FOLDER does not include OTHER.
never() {
    report "$1 must not include $2" "$(includes "$2/" "$1")"
}

# library NAME PATTERN FOLDER…: headers that match are included in these folders only.
library() {
    local name=$1 pattern=$2 folders
    shift 2
    folders=$*
    report "only ${folders// / and } may include $name" \
        "$(includes "$pattern" "${layers[@]}" | outside "$@")"
}

layers=(engine proto models server)

report 'engine/ may include engine/ only' "$(includes '(proto|models|server|tests)/' engine)"
report 'proto/ may include engine/base and engine/tensor only' \
    "$(includes '(engine|models|server|tests)/' proto | grep -vE '[<"]engine/(base|tensor)/' || true)"
report 'models/ may include engine/ and proto/ only' "$(includes '(server|tests)/' models)"
report 'server/ must not include tests/' "$(includes 'tests/' server)"

# Inside engine/, lowest first. A folder includes itself and those before it.
order=(base tensor graph op passes backend cpu cuda runtime quantize)
for ((low = 0; low < ${#order[@]}; low++)); do
    for ((high = low + 1; high < ${#order[@]}; high++)); do
        never "engine/${order[low]}" "engine/${order[high]}"
    done
done
never engine/cuda engine/cpu
report 'the folder is not in the order of engine/ (tests/check_layers.sh)' \
    "$(includes 'engine/' "${layers[@]}" | grep -vE "[<\"]engine/($(IFS='|' && echo "${order[*]}"))/" || true)"
for device in engine/cpu engine/cuda; do
    never "$device/program" "$device/lowering"
    never "$device/kernels" "$device/program"
    never "$device/kernels" "$device/lowering"
done

never models/onnx models/folder
never models/tasks models/folder
never models/text models/folder
never models/text models/onnx
never models/folder models/quantize
never server/answers server/http
never server/http/transport server/http/api
never server/schedule/policy server/schedule/runtime

library CUDA '(cuda|cublas|cudnn)' engine/cuda
library 'protobuf-c and onnx.proto' '(proto/)?onnx\.pb-c' models/onnx
library 'sentencepiece.proto' '(proto/)?sentencepiece\.pb-c' models/text
library protobuf-c '(protobuf-c/|(proto/)?grpc_service\.pb-c)' models/onnx models/text proto
library nghttp2 'nghttp2/' server/http/transport
library libmicrohttpd 'microhttpd' server/http/transport
library GnuTLS '(gnutls|nettle)/' server/http/transport server/cli
library zlib 'zlib\.h' server/http/transport
library SQLite 'sqlite3' server/faces
library libjpeg-turbo '(turbojpeg|jpeglib|jerror)\.h' server/image
library libpng 'png\.h' server/image
library cJSON '(cjson/)?cJSON' proto models/folder models/text
library PCRE2 'pcre2' models/text
library utf8proc 'utf8proc' models/text

# Circles among headers: tsort names the files of each loop on standard error.
circles=$(includes '(engine|proto|models|server)/' "${layers[@]}" |
    sed -nE 's/^([^:]+\.h):[0-9]+:.*[<"]([^">]+)[">].*/\1 \2/p' | tsort 2>&1 >/dev/null || true)
report 'headers include each other in a circle' "$circles"

# Sources whose first line begins no comment.
headless=$(find "${layers[@]}" tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort |
    xargs -r awk 'FNR == 1 && !/^\/\*/ { print FILENAME }')
report 'a source does not begin with a comment that says what it is for' "$headless"

[ "$found" -eq 0 ] || exit 1
echo 'layers: every include goes down, every library stays in its folders, every source has a heading'
