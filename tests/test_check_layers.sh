#!/usr/bin/env bash
# check_layers.sh finds each kind of offence, and accepts a tree that has none. TAP.
set -euo pipefail

check=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/check_layers.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
number=0 failures=0

source_of() { # source_of FILE LINE…: a source with a heading and these lines
    local file=$1
    shift
    printf '%s\n' '/* A source. */' "$@" >"$file"
}

fresh_tree() {
    rm -rf "$scratch/tree"
    mkdir -p "$scratch"/tree/engine/{base,tensor,graph,op,passes,backend,runtime} \
        "$scratch"/tree/engine/{cpu,cuda}/{program,lowering,kernels} \
        "$scratch"/tree/{proto,models/onnx,models/folder,models/text,tests} \
        "$scratch"/tree/server/{image,http/transport,http/api,schedule/policy,schedule/runtime}
    cd "$scratch/tree"
    source_of engine/tensor/tensor.h '#pragma once'
    source_of engine/cpu/program/program.c '#include "engine/tensor/tensor.h"'
    source_of engine/cpu/lowering/pool.c '#include "engine/cpu/kernels/simd.h"' '#include "engine/op/gemm.h"'
    source_of server/http/transport/daemon.c '#include "models/folder/model.h"' '#include <microhttpd.h>'
    source_of server/http/api/console_page.c '#include "server/http/transport/respond.h"'
    source_of server/schedule/runtime/lane.c '#include "server/schedule/policy/batcher.h"'
    source_of proto/v2.c '#include "engine/tensor/tensor.h"' '#include <cjson/cJSON.h>'
    source_of models/folder/labels.c '#include "models/onnx/onnx.h"' '#include <cjson/cJSON.h>'
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
    source_of "$file" "$@"
    if output=$("$check" "$scratch/tree" 2>&1); then
        result 1 "$name"
    else
        result "$(grep -q "$file" <<<"$output"; echo $?)" "$name"
    fi
}

fresh_tree
result "$("$check" "$scratch/tree" >/dev/null 2>&1; echo $?)" 'a clean tree passes'
refuses 'engine includes server' engine/base/up.c '#include "server/observe/log.h"'
refuses 'proto includes models' proto/up.c '#  include <models/folder/model.h>'
refuses 'proto includes the graph' proto/up.c '#include "engine/graph/graph.h"'
refuses 'models includes server' models/folder/up.h ' #include "server/image/image.h"'
refuses 'server includes tests' server/image/up.c '#include "tests/unit/support.h"'
refuses 'tensor includes the graph' engine/tensor/up.c '#include "engine/graph/graph.h"'
refuses 'operators include passes' engine/op/up.c '#include "engine/passes/passes.h"'
refuses 'passes include a backend' engine/passes/up.c '#include "engine/backend/backend.h"'
refuses 'a backend includes sessions' engine/cuda/lowering/up.c '#include "engine/runtime/session.h"'
refuses 'cpu includes cuda' engine/cpu/up.c '#include "engine/cuda/cuda.h"'
refuses 'cuda includes cpu' engine/cuda/up.c '#include "engine/cpu/program/cpu.h"'
refuses 'a header of engine outside of its folders' engine/runtime/up.c '#include "engine/graph.h"'
refuses 'programs include lowerings' engine/cpu/program/up.c '#include "engine/cpu/lowering/lowering.h"'
refuses 'kernels include programs' engine/cuda/kernels/up.cu '#include "engine/cuda/program/program.h"'
refuses 'the importer includes model folders' models/onnx/up.c '#include "models/folder/labels.h"'
refuses 'transport includes the API' server/http/transport/up.c '#include "server/http/api/routes.h"'
refuses 'policy includes the runtime' server/schedule/policy/up.c '#include "server/schedule/runtime/lane.h"'
refuses 'CUDA outside engine/cuda' engine/runtime/cuda.c '#include <cuda_runtime.h>'
refuses 'protobuf-c in model folders' models/folder/wire.c '#include <protobuf-c/protobuf-c.h>'
refuses 'onnx.proto outside the importer' proto/wire.c '#include "proto/onnx.pb-c.h"'
refuses 'nghttp2 outside transport' server/http/api/frames.c '#include <nghttp2/nghttp2.h>'
refuses 'libmicrohttpd outside transport' server/http/api/http.c '#include <microhttpd.h>'
refuses 'GnuTLS outside transport' server/image/hash.c '#include <gnutls/crypto.h>'
refuses 'zlib outside transport' models/onnx/unpack.c '#include <zlib.h>'
refuses 'SQLite outside server/faces' server/http/api/db.c '#include <sqlite3.h>'
refuses 'libjpeg outside server/image' server/http/api/jpeg.c '#include <turbojpeg.h>'
refuses 'libpng outside server/image' server/http/api/png.c '#include <png.h>'
refuses 'the tokenizers include model folders' models/text/up.c '#include "models/folder/labels.h"'
refuses 'PCRE2 outside tokenizers' models/folder/pattern.c '#include <pcre2.h>'
refuses 'cJSON in the importer' models/onnx/json.c '#include <cjson/cJSON.h>'
fresh_tree
source_of engine/graph/node.h '#include "engine/graph/graph.h"'
source_of engine/graph/graph.h '#include "engine/graph/node.h"'
result "$(! "$check" "$scratch/tree" >/dev/null 2>&1; echo $?)" 'headers in a circle'
fresh_tree
echo '#include "engine/tensor/tensor.h"' >engine/cpu/program/weights.c
output=$("$check" "$scratch/tree" 2>&1 || true)
result "$(grep -q '^    engine/cpu/program/weights.c$' <<<"$output"; echo $?)" 'a source without a heading'
echo "1..$number"
[ "$failures" -eq 0 ]
