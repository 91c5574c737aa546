#!/usr/bin/env bash
# check_floors.sh finds each kind of offence, and is content with a tree that has none. TAP.
set -euo pipefail

check=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/check_floors.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
number=0 failures=0

fresh_tree() {
    rm -rf "$scratch/tree"
    mkdir -p "$scratch"/tree/{engine/base,engine/cpu,proto,models,server/http,server/image,tests}
    cd "$scratch/tree"
    echo '#pragma once' >engine/tensor.h
    printf '#include "engine/tensor.h"\n#include <oneapi/dnnl/dnnl.h>\n' >engine/cpu/conv.c
    printf '#include "models/model.h"\n#include <microhttpd.h>\n' >server/http/daemon.c
    printf '#include "engine/tensor.h"\n#include <cjson/cJSON.h>\n' >proto/v2.c
}

result() { # result OK? NAME
    number=$((number + 1))
    if [ "$1" -eq 0 ]; then
        echo "ok $number - $2"
    else
        echo "not ok $number - $2"
        failures=$((failures + 1))
    fi
}

# refuses NAME FILE LINE…: with these lines in that file the tree is refused, and the file is named.
refuses() {
    local name=$1 file=$2 output
    shift 2
    fresh_tree
    printf '%s\n' "$@" >"$file"
    if output=$("$check" "$scratch/tree" 2>&1); then
        result 1 "$name"
    else
        result "$(grep -q "$file" <<<"$output"; echo $?)" "$name"
    fi
}

echo '1..12'
fresh_tree
result "$("$check" "$scratch/tree" >/dev/null 2>&1; echo $?)" 'a clean tree passes'
refuses 'engine includes server' engine/base/up.c '#include "server/observe/log.h"'
refuses 'proto includes models' proto/up.c '#  include <models/model.h>'
refuses 'proto includes the graph' proto/up.c '#include "engine/graph.h"'
refuses 'models includes server' models/up.h ' #include "server/image/image.h"'
refuses 'oneDNN outside engine/cpu' engine/base/dnnl.c '#include <dnnl.h>'
refuses 'libmicrohttpd outside server/http' server/image/http.c '#include <microhttpd.h>'
refuses 'GnuTLS outside server/http' server/image/hash.c '#include <gnutls/crypto.h>'
refuses 'zlib outside server/http' models/unpack.c '#include <zlib.h>'
refuses 'cJSON in server' server/http/json.c '#include <cjson/cJSON.h>'
refuses 'libpng outside server/image' server/http/png.c '#include <png.h>'
fresh_tree
echo '#include "engine/graph.h"' >engine/tensor.h
echo '#include "engine/tensor.h"' >engine/graph.h
result "$(! "$check" "$scratch/tree" >/dev/null 2>&1; echo $?)" 'headers in a circle'
[ "$failures" -eq 0 ]
