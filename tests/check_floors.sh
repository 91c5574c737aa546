#!/usr/bin/env bash
# The floors of the house (docs/design.md): an include never goes up, inside a floor includes make no
# circle, and every library is named in its own room only.
#
#   check_floors.sh [TREE]    exit 0 and one line, or exit 1 and every offending line
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
    local room pattern=
    for room in "$@"; do
        pattern+="${pattern:+|}^$room/"
    done
    grep -vE "$pattern" || true
}

floors=(engine proto models server)

report 'an include climbs out of engine/' "$(includes '(proto|models|server|tests)/' engine)"
report 'an include climbs out of proto/' "$(includes '(models|server|tests)/' proto)"
report 'proto/ may know engine/base and engine/tensor.h only' \
    "$(includes 'engine/' proto | grep -vE '[<"]engine/(base/[a-z0-9_]+|tensor|device)\.h"' || true)"
report 'an include climbs out of models/' "$(includes '(server|tests)/' models)"
report 'an include climbs out of server/' "$(includes 'tests/' server)"

report 'libmicrohttpd belongs to server/http' \
    "$(includes 'microhttpd' "${floors[@]}" | outside server/http)"
report 'GnuTLS belongs to server/http' \
    "$(includes '(gnutls|nettle)/' "${floors[@]}" | outside server/http)"
report 'zlib belongs to server/http' \
    "$(includes 'zlib\.h' "${floors[@]}" | outside server/http)"
report 'cJSON belongs to proto/ and the config readers of models/' \
    "$(includes '(cjson/)?cJSON' "${floors[@]}" | outside proto models)"
report 'protobuf-c belongs to models/' \
    "$(includes '(protobuf-c/|onnx\.pb-c|proto/onnx\.pb-c)' "${floors[@]}" | outside models)"
report 'oneDNN belongs to engine/cpu' \
    "$(includes '(oneapi/)?dnnl' "${floors[@]}" | outside engine/cpu)"
report 'CUDA belongs to engine/cuda' \
    "$(includes '(cuda|cublas|cudnn)' "${floors[@]}" | outside engine/cuda)"
report 'libjpeg and libpng belong to server/image' \
    "$(includes '(turbojpeg|jpeglib|jerror|png)\.h' "${floors[@]}" | outside server/image)"

# Circles among headers: tsort names the files of each loop on standard error.
circles=$(includes '(engine|proto|models|server)/' "${floors[@]}" |
    sed -nE 's/^([^:]+\.h):[0-9]+:.*[<"]([^">]+)[">].*/\1 \2/p' | tsort 2>&1 >/dev/null || true)
report 'headers include each other in a circle' "$circles"

[ "$found" -eq 0 ] || exit 1
echo 'floors: every include points down, every library is in its room'
