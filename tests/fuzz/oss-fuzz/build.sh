#!/bin/bash -eu
# Builds the fuzz targets as OSS-Fuzz wants them: programs, corpora and libraries in $OUT.
#
# OSS-Fuzz sets what it reads. Without OSS-Fuzz:
#     export CC=clang CXX=clang++ LIB_FUZZING_ENGINE=-fsanitize=fuzzer
#     export CFLAGS="-O1 -fno-omit-frame-pointer -gline-tables-only -fsanitize=address -fsanitize=fuzzer-no-link"
#     export SRC=$(mktemp -d) WORK=$(mktemp -d) OUT=$(mktemp -d)
#     ln -s "$PWD" "$SRC/lensd" && tests/fuzz/oss-fuzz/build.sh

cd "$SRC/lensd"
meson setup "$WORK/build" -Dfuzz=true -Dfuzz_engine="$LIB_FUZZING_ENGINE" -Dtests=disabled -Dload=disabled \
    -Dcuda=disabled -Db_lundef=false
mapfile -t targets < <(ninja -C "$WORK/build" -t targets all | sed -n 's,^\(tests/fuzz/fuzz_[a-z_]*\): .*,\1,p')
ninja -C "$WORK/build" "${targets[@]}"

# shellcheck disable=SC2016  # $ORIGIN is the dynamic linker's
origin='$ORIGIN'
# The machines that run the targets have only the C library: the others lie beside them.
mkdir -p "$OUT/lib"
for target in "${targets[@]}"; do
    name=${target##*/fuzz_}
    cp "$WORK/build/$target" "$OUT/fuzz_$name"
    ldd "$OUT/fuzz_$name" | awk '$3 ~ /^\// && $1 !~ /^(libc|libm|libdl|librt|libpthread|libgcc_s)\.so/ { print $3 }' |
        xargs -r cp -nt "$OUT/lib"
    patchelf --set-rpath "$origin/lib" "$OUT/fuzz_$name"
    rm -f "$OUT/fuzz_${name}_seed_corpus.zip"
    zip -qj "$OUT/fuzz_${name}_seed_corpus.zip" "tests/fuzz/corpus/$name"/*
done
for library in "$OUT"/lib/*; do
    patchelf --set-rpath "$origin" "$library"
done
