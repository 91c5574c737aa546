#!/bin/sh
# collect.sh PROGRAM FOLDER [LIBRARY…]: copies PROGRAM and everything that it needs into FOLDER: its shared
# libraries, each LIBRARY (by its name) that it loads at run time, the dynamic loader, a user to run
# as, and the licences of the copied files; no shell and no package manager. Prints the
# packages that the files come from. QEMU_LD_PREFIX: the libraries of a PROGRAM for another CPU (tests/arm64.sh).
set -eu
program=$1 folder=$2 root=${QEMU_LD_PREFIX:-}
shift 2
mkdir -p "$folder/usr/bin" "$folder/etc" "$folder/tmp" "$folder/models" "$folder/usr/share/doc"
chmod 1777 "$folder/tmp"
cp "$program" "$folder/usr/bin/"
# Debian 12 has a merged /usr; paths like /lib64/ld-linux-x86-64.so.2 need these links.
for name in lib lib64; do
    mkdir -p "$folder/usr/$name"
    ln -s "usr/$name" "$folder/$name"
done
# Works like ldd, also for another CPU: the loader lists the libraries that it would load. glibc loads libgcc_s when a thread is cancelled.
LD_PRELOAD="libgcc_s.so.1 $*" LD_TRACE_LOADED_OBJECTS=1 "$program" |
sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) (.*/\1/p' | sort -u |
while read -r library; do
    file=$(readlink -f "$root$library")
    mkdir -p "$folder/$(dirname "$library")"
    cp "$file" "$folder/$library"
    # Searches by file name, because packages still list files under /lib that now lie under /usr/lib.
    package=$(dpkg-query -S "*/$(basename "$file")" | sed -n '1s/:.*//p')
    mkdir -p "$folder/usr/share/doc/$package"
    cp "$root/usr/share/doc/$package/copyright" "$folder/usr/share/doc/$package/"
done
echo 'lensd:x:10001:10001:lensd:/:/usr/sbin/nologin' >"$folder/etc/passwd"
echo 'lensd:x:10001:' >"$folder/etc/group"
ls "$folder/usr/share/doc"
