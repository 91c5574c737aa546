#!/usr/bin/env bash
# ./dev before anything is built: its words, its exit codes, and what it would install. The system's
# own programs are replaced by scripts first on PATH, so nothing is installed here. TAP.
set -euo pipefail

dev=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../dev
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
number=0 failures=0
unset CI LENSD_SKIP_PACKAGES
export LENSD_OS_RELEASE=$scratch/os-release

result() { # result STATUS NAME: 0 is good
    number=$((number + 1))
    if [ "$1" -eq 0 ]; then echo "ok $number - $2"; else
        echo "not ok $number - $2"
        failures=$((failures + 1))
        sed 's/^/# /' "$scratch/output"
    fi
}

# A program that prints the given text and exits with the given status, and logs its arguments.
fake() { # fake NAME STATUS TEXT
    printf '#!/bin/sh\necho "%s $*" >>"%s/calls"\nprintf "%%s" "%s"\nexit %s\n' \
        "$1" "$scratch" "$3" "$2" >"$scratch/bin/$1"
    chmod +x "$scratch/bin/$1"
}

fresh() {
    rm -rf "${scratch:?}/bin" "$scratch/calls"
    mkdir "$scratch/bin"
    touch "$scratch/calls"
    fake meson 1 'no meson here'
    fake sudo 1 ''
    fake apt-get 0 ''
    fake apt-cache 0 ''
    # Everything is installed but for libmicrohttpd-dev.
    cat >"$scratch/bin/dpkg-query" <<'FAKE'
#!/bin/sh
case "$*" in *libmicrohttpd-dev) exit 1 ;; *) printf installed ;; esac
FAKE
    chmod +x "$scratch/bin/dpkg-query"
}

system() { # system ID VERSION ID_LIKE: what ./dev takes this system for
    printf 'ID=%s\nVERSION_ID="%s"\nID_LIKE="%s"\nPRETTY_NAME="%s"\n' "$1" "$2" "$3" \
        "$([ "$1" = debian ] && echo Debian || echo "$1") $2" >"$scratch/os-release"
}

run_dev() { # run_dev [arguments]: output and status of ./dev in a copy that can write no build folder
    status=0
    (cd "$scratch" && PATH=$scratch/bin:$PATH "$scratch/tree/dev" "$@") \
        >"$scratch/output" 2>&1 </dev/null || status=$?
}

says() { grep -qF -- "$1" "$scratch/output"; }

mkdir "$scratch/tree"
cp "$dev" "$scratch/tree/dev"
mkdir "$scratch/tree/tests"
source=$(dirname -- "$dev")
cp -r "$source"/tests/{report.py,packages.sh,bench,gpu,load} "$scratch/tree/tests/"
mkdir "$scratch/tree/models"
cp "$source/models/needs.py" "$scratch/tree/models/"

echo '1..21'
system debian 12 ''
fresh
run_dev
result "$([ $status -eq 0 ] && says 'run [options] [MODEL]' && says 'test [SUITE'; echo $?)" \
    'without a verb it lists the verbs'
run_dev serve
result "$([ $status -eq 2 ] && says "there is no verb 'serve'"; echo $?)" 'an unknown verb is refused'

system debian 13 ''
fresh
fake id 0 1000
run_dev run
result "$([ $status -eq 2 ] && says 'apt-get install -y --no-install-recommends libmicrohttpd-dev' &&
    ! grep -q '^apt-get' "$scratch/calls"; echo $?)" \
    'neither root nor sudo: the line to type, and exit 2'
fresh
fake id 0 0
run_dev run
result "$(says 'installing Debian packages: libmicrohttpd-dev' && ! says 'is tested on' &&
    grep -qx 'apt-get install -qy --no-install-recommends libmicrohttpd-dev' "$scratch/calls"
    echo $?)" 'as root the missing package is named and installed, and no other'
fresh
fake id 0 0
fake apt-get 100 ''
run_dev run
result "$([ $status -eq 2 ] && says 'Is the network there?'; echo $?)" 'apt fails'
# What apt does on a fresh system without a network.
fresh
fake id 0 0
fake apt-cache 100 ''
cat >"$scratch/bin/apt-get" <<'FAKE'
#!/bin/sh
case "$*" in
*--error-on=any*) echo 'E: Failed to fetch http://mirror.invalid/debian/dists/trixie/InRelease' && exit 100 ;;
update*) echo 'W: Some index files failed to download. They have been ignored, or old ones used instead.' ;;
*) echo 'E: Unable to locate package libmicrohttpd-dev' && exit 100 ;;
esac
FAKE
run_dev run
result "$([ $status -eq 2 ] && says 'Is the network there?' && ! says 'has no package'; echo $?)" \
    'without a network a package is not called missing'
fresh
fake id 0 0
fake apt-cache 100 ''
run_dev run
result "$([ $status -eq 2 ] && says 'Debian 13 has no package libmicrohttpd-dev' &&
    ! grep -q '^apt-get install' "$scratch/calls"; echo $?)" 'a package that the system does not have is named'
system ubuntu 24.04 debian
fresh
fake id 0 0
run_dev run
result "$(says 'this is ubuntu 24.04; lensd is tested on Debian 12 and 13' && grep -q '^apt-get install' "$scratch/calls"
    echo $?)" "a relative of Debian's is tried"
system fedora 42 ''
fresh
fake id 0 0
run_dev run
result "$([ $status -eq 2 ] && says 'this is fedora 42' && says 'the equivalents of: libmicrohttpd-dev' &&
    ! grep -q '^apt-get' "$scratch/calls"; echo $?)" 'on another system it says what is needed'

fresh
printf '#!/bin/sh\nprintf installed\n' >"$scratch/bin/dpkg-query"
run_dev run
result "$([ $status -eq 1 ] && says 'no meson here' && ! grep -q '^apt-get' "$scratch/calls"; echo $?)" \
    'with everything installed apt is not asked, and a configuration that fails is shown'

fresh
printf '#!/bin/sh\nprintf installed\n' >"$scratch/bin/dpkg-query"
fake meson 0 '[]'
fake ninja 0 ''
run_dev test nosuchtest
result "$([ $status -eq 2 ] && says "there is no test or suite 'nosuchtest'" &&
    [ "$(grep '^ninja' "$scratch/calls")" = "ninja -C $scratch/tree/build --quiet build.ninja" ]; echo $?)" \
    'test: a name that is none is refused before anything is built'

fresh
printf '#!/bin/sh\nprintf installed\n' >"$scratch/bin/dpkg-query"
fake meson 0 ''
fake ninja 1 $'ninja: Entering directory x\n[1/9] Compiling a.c\na.c:1: an error\n[2/9] Compiling b.c\n'
run_dev run
result "$([ $status -eq 1 ] && says 'dev: built [1/9]' && says 'a.c:1: an error' && ! says Compiling &&
    ! says Entering; echo $?)" \
    'run: without a terminal it says how far it is, and what is wrong'
(cd "$scratch" && PATH=$scratch/bin:$PATH TERM=xterm script -qec "$scratch/tree/dev run" /dev/null) \
    >"$scratch/output" 2>&1 </dev/null || true
result "$(says '[2/9] Compiling b.c'; echo $?)" 'run: on a terminal ninja shows how far it is'

# debhelper provides the dh- names; build-essential is in nobody's Build-Depends, and dpkg-buildpackage wants it.
fresh
fake dpkg-query 1 ''
run_dev deb
mapfile -t wanted < <(sed -n '/^Build-Depends:/,/^$/{s/^[^ ]*//;s/([^)]*)//g;p}' "$source/docker/debian/control" | tr -s ', ' '\n' | grep .)
good=$([ ${#wanted[@]} -gt 5 ]; echo $?)
for package in build-essential "${wanted[@]}"; do
    [[ $package == dh-* || $package == debhelper-compat ]] || grep -qE "the equivalents of:.* ${package}[ ;]" "$scratch/output" || good=1
done
result "$good" 'deb: on a bare system it installs what the packages are built with'

# It says how far it is, and with what it failed.
mkdir "$scratch/tree/docker"
cp -r "$source"/docker/{deb.sh,debian} "$scratch/tree/docker/"
cp "$source"/{CHANGELOG.md,meson.build} "$scratch/tree/"
fresh
printf '#!/bin/sh\nprintf installed\n' >"$scratch/bin/dpkg-query"
fake dpkg-buildpackage 1 $'   dh_auto_build\n[1/9] cc -c a.c\n[2/9] cc -c b.c\nb.c:1: an error\n'
run_dev deb
result "$([ $status -eq 1 ] && says 'deb: dh_auto_build' && says 'deb: built [1/9]' && ! says 'deb: built [2/9]' &&
    says 'b.c:1: an error'; echo $?)" 'deb: it says how far it is, and what is wrong'

# The architectures of a bundle that ./dev gpu builds are those of the GPUs that are here.
fresh
printf '#!/bin/sh\nprintf installed\n' >"$scratch/bin/dpkg-query"
fake nvidia-smi 9 'NVIDIA-SMI has failed'
run_dev gpu --plan 1
result "$([ $status -eq 2 ] && says 'nvidia-smi shows no GPU here' && ! grep -q '^meson' "$scratch/calls"; echo $?)" \
    'gpu: where there is none, nothing is built'
fake nvidia-smi 0 $'9.0\n8.0\n9.0\n'
run_dev gpu --plan 1
result "$([ $status -eq 1 ] && grep -q '^meson .*-Dgpu_arch=sm_80,sm_90' "$scratch/calls"; echo $?)" \
    'gpu: the bundle is for the GPUs that are here'

# CI: the quick steps come first, a step that fails does not stop the others, and what they counted is added up.
mkdir -p "$scratch/ci/tests"
cp "$source/tests/ci.sh" "$source/tests/report.py" "$scratch/ci/tests/"
cat >"$scratch/ci/dev" <<FAKE
#!/bin/sh
echo "\$*" >>"$scratch/steps"
case \$1 in
families) exit 0 ;;
tsan) exit 1 ;;
distros) echo '2 passed, 1 failed, 0 skipped' && exit 1 ;;
asan) echo '2 passed, 1 failed, 0 skipped' && exit 1 ;;
*) echo '3 passed, 0 failed, 1 skipped' ;;
esac
FAKE
chmod +x "$scratch/ci/dev"
status=0
"$scratch/ci/tests/ci.sh" >"$scratch/output" 2>/dev/null || status=$?
result "$([ $status -eq 1 ] && [ "$(grep -vE 'tidy|distros' "$scratch/steps" | head -2 | paste -sd,)" = 'lint format,test lint unit' ] &&
    [ "$(wc -l <"$scratch/steps")" -eq 11 ] &&
    [ "$(tail -1 "$scratch/output")" = '25 passed, 3 failed, 7 skipped' ]; echo $?)" \
    'CI: the quick steps first, all of them, and their totals'
result "$(grep -qx '==== distros --first-answer ====' "$scratch/output"; echo $?)" 'CI: a failure of the second line of steps is told'
# The second line is killed before it can say how its step ended.
cat >"$scratch/ci/dev" <<'FAKE'
#!/bin/sh
echo '3 passed, 0 failed, 0 skipped'
if [ "$1" = distros ]; then
    for logs in "$TMPDIR"/*/; do : >"$logs/distros --first-answer.end"; done
    kill -9 "$PPID"
fi
FAKE
mkdir "$scratch/logs"
status=0
TMPDIR=$scratch/logs "$scratch/ci/tests/ci.sh" >"$scratch/output" 2>/dev/null || status=$?
result "$([ $status -eq 1 ] && grep -qx '==== distros --first-answer ====' "$scratch/output"; echo $?)" 'CI: a step that left no status has failed'
# Ctrl-C reaches every process of the terminal, also those of the second line.
cat >"$scratch/ci/dev" <<FAKE
#!/bin/bash
echo "\$*" >>"$scratch/begun"
case \$1 in asan) wait_for='lint tidy' ;; lint) [ "\$2" = tidy ] || exit 0 && wait_for=asan ;; *) exit 0 ;; esac
until grep -qx "\$wait_for" "$scratch/begun"; do sleep 0.1; done
echo "\$\$" >>"$scratch/ready"
[ "\$1" = asan ] || exec sleep 60
trap 'kill \$!; sleep 1; exit 130' INT # the last to end
sleep 60 & wait
FAKE
touch "$scratch/begun" "$scratch/ready"
cat >"$scratch/interrupt.py" <<'PYTHON'
import os, signal, subprocess, sys, time
scratch = sys.argv[1]
signal.signal(signal.SIGINT, signal.SIG_DFL)
ci = subprocess.Popen([scratch + "/ci/tests/ci.sh"], start_new_session=True)
def read(name):
    with open(f"{scratch}/{name}", encoding="utf-8") as file:
        return file.read().split("\n")[:-1]
while len(read("ready")) < 2:
    time.sleep(.1)
os.killpg(ci.pid, signal.SIGINT)
assert ci.wait() in (130, -signal.SIGINT)
while any(os.path.exists(f"/proc/{pid}") for pid in read("ready")):
    time.sleep(.1)
assert not {"tsan", "distros --first-answer"} & {*read("begun")}, read("begun")
PYTHON
result "$(python3 "$scratch/interrupt.py" "$scratch" >/dev/null 2>&1; echo $?)" 'CI: Ctrl-C ends both lines of steps'
[ "$failures" -eq 0 ]
