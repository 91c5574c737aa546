#!/usr/bin/env bash
# The README's two commands from nothing, on each Debian release: a root with Debian's essential packages, a copy of
# the tracked files, `./dev run` until it has answered a request, `./dev test`. As root and as a user with sudo.
#
#   distros.sh [--first-answer | --quick | --packages FOLDER] [bookworm|trixie …]
#
# --first-answer: only `./dev run` as root, whose seconds are those from nothing to the first answer.
# --quick: as root only, of the tests lint and unit without CUDA's, by default on the release that this machine does not have,
# in a root that has the packages already ($LENSD_DISTROS_PACKAGES). --packages: installs and tries packages instead,
# under systemd (packages_inside.sh): those of the folder on this machine's release, on the other one those that
# `./dev deb` makes there.
# Needs root, mmdebstrap and the network. Roots, packages and what ccache compiled are kept in $LENSD_DISTROS (default
# ~/.cache/lensd-distros); without --quick `./dev run` compiles from nothing. Each command is one check; ends with
# "N passed, N failed, N skipped".
set -euo pipefail

tree=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd)
cache=${LENSD_DISTROS:-${XDG_CACHE_HOME:-$HOME/.cache}/lensd-distros}
accounts=(root user) included=(sudo ccache) kind=root tests='' has_tests=true fresh='CCACHE_DISABLE=1' own_packages='' passed=0 failed=0 skipped=0 roots=()
trap 'rm -rf --one-file-system -- "${roots[@]}"' EXIT

say() {
    printf 'distros: %s\n' "$*" >&2
}

total() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
    exit
}

skip() {
    say "skipped: $*"
    skipped=$((skipped + 1))
    total
}

# check NAME COMMAND…: counts it.
check() {
    local name=$1 from=$SECONDS status=0
    shift
    say "$name: begins"
    "$@" || status=$?
    if [ "$status" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    say "$name: $([ "$status" -eq 0 ] && echo passed || echo FAILED) after $((SECONDS - from)) s"
    return "$status"
}

# become_inside ROOT ACCOUNT COMMAND: this shell becomes the command, in the account's copy of the tree. What it mounts and
# starts ends with it.
become_inside() {
    # shellcheck disable=SC2016  # expanded by the inner shell
    exec unshare --mount --pid --fork --kill-child -- bash -euc '
        root=$1 kept=$4
        mount -t proc proc "$root/proc"
        mount --rbind -o ro /sys "$root/sys"
        mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
        mount -t tmpfs tmpfs "$root/dev/shm"
        mount --bind "$kept/archives" "$root/var/cache/apt/archives"
        mkdir -p "$kept/ccache" "$root/var/cache/ccache"
        mount --bind "$kept/ccache" "$root/var/cache/ccache"
        chroot "$root" chown -R "$2": /var/cache/ccache
        # The homes of the accounts differ, what is compiled does not.
        exec chroot "$root" su -l "$2" -c "export CI=${CI:-} CCACHE_DIR=/var/cache/ccache CCACHE_NOHASHDIR=1 && cd lensd && $3"' \
        _ "$1" "$2" "$3" "$cache/$release" </dev/null
}

inside() {
    (become_inside "$@")
}

# run_answers ROOT ACCOUNT HOME: `./dev run` serves and answers the README's request. The port is any free one, because the
# network is this machine's.
run_answers() {
    local root=$1 home=$3 image=$1$3/lensd/tests/data/digits/drawn/7_paper.png server status=1 end=$((SECONDS + 7200))
    become_inside "$root" "$2" "exec env $fresh ./dev run --port 0 --port-file port" &
    server=$!
    while [ ! -s "$root$home/lensd/port" ] && kill -0 "$server" 2>/dev/null && [ "$SECONDS" -lt "$end" ]; do sleep 0.2; done
    if [ -s "$root$home/lensd/port" ]; then
        curl -sS --retry 60 --retry-all-errors --retry-delay 1 --data-binary "@$image" \
            "http://127.0.0.1:$(cat "$root$home/lensd/port")/predict" | grep '"label":"7"' && status=0
    fi
    kill -KILL "$server" 2>/dev/null || true # unshare takes no other; its child ends with it
    wait "$server" 2>/dev/null || true
    return "$status"
}

# need_archive RELEASE PACKAGE…: sets `archive` to that of a root with these packages, too. One of each kind is kept.
need_archive() {
    local release=$1 log=$cache/$1.log include
    shift
    include=$(IFS=,; printf '%s' "$*")
    archive=$cache/$release/$kind-$(cksum <<<"$include" | cut -d' ' -f1).tar
    [ ! -f "$archive" ] || return 0
    rm -f "$cache/$release/$kind"-*.tar
    say "$release: making a root"
    # The format is named: mmdebstrap takes a name with .new for a folder.
    if ! mmdebstrap --format=tar --variant=minbase --include="$include" "$release" "$archive.new" >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        apt_was_offline "$log" && skip "Debian's packages are not reachable"
        return 1
    fi
    mv "$archive.new" "$archive"
}

# make_root RELEASE ACCOUNT: sets `root` to a new one with the tree in the account's home.
make_root() {
    local files=$cache/$1.files
    root=$(mktemp -d "$cache/$1.XXXXXX")
    roots+=("$root")
    tar -C "$root" -xpf "$archive"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    printf '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n' >"$root/etc/hosts"
    home=/root
    if [ "$2" = user ]; then
        home=/home/user
        chroot "$root" useradd -m -s /bin/bash user
        echo 'user ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/user"
    fi
    git -C "$tree" ls-files -z >"$files"
    mkdir "$root$home/lensd"
    tar -C "$tree" --null -T "$files" -cf - | tar -C "$root$home/lensd" --no-same-owner -xf -
    [ "$2" = root ] || chroot "$root" chown -R "$2": "$home"
}

# apt_was_offline LOG: whether apt could not reach its packages.
apt_was_offline() {
    grep -qE 'Failed to fetch|Could not (resolve|connect)|Temporary failure resolving' "$1"
}

drop_root() {
    rm -rf --one-file-system -- "$root"
}

# make_packages RELEASE: sets `packages` to a folder with those of the release.
make_packages() {
    local release=$1
    packages=$cache/$release/packages
    make_root "$release" root
    check "$release: ./dev deb" inside "$root" root './dev deb' || return 1
    rm -rf "$packages"
    mv "$root/root/lensd/build-deb/packages" "$packages"
    drop_root
}

# booted ROOT COMMAND: starts systemd as the root's first process, which runs the command in root's copy of the tree as a
# service. Ends as the command does, and shows what it wrote.
booted() {
    local root=$1 group status=0
    group=$(findmnt -nft cgroup2 -o TARGET)$(sed -n 's/^0:://p' /proc/self/cgroup)/lensd-distros-$$
    cat >"$root/etc/systemd/system/try.service" <<UNIT
[Unit]
SuccessAction=exit-force
SuccessActionExitStatus=0
FailureAction=exit-force
FailureActionExitStatus=1
[Service]
Type=oneshot
TimeoutStartSec=900
WorkingDirectory=/root/lensd
ExecStart=/root/lensd/$2
StandardOutput=file:/root/try.log
StandardError=inherit
UNIT
    # What the kernel audits is of this whole machine.
    ln -s /dev/null "$root/etc/systemd/system/systemd-journald-audit.socket"
    mkdir -p "$group"
    # shellcheck disable=SC2016  # expanded by the inner shells
    bash -euc 'echo $$ >"$2/cgroup.procs" && exec timeout 1200 unshare --mount --pid --fork --kill-child --uts --ipc --cgroup bash -euc '"'"'
        root=$1 kept=$2
        mount --bind "$root" "$root"
        mount -t proc proc "$root/proc"
        mount -t sysfs -o ro sysfs "$root/sys"
        mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
        mount -t tmpfs tmpfs "$root/run"
        mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
        mount -t tmpfs tmpfs "$root/dev/shm"
        mount --bind "$kept/archives" "$root/var/cache/apt/archives"
        cd "$root" && pivot_root . mnt # in a chroot the unit could have no user namespace
        exec env -i PATH=/usr/sbin:/usr/bin container=lxc \
            sh -c "umount -l /mnt && exec /lib/systemd/systemd --unit=try.service"'"'"' _ "$1" "$3"' \
        _ "$root" "$group" "$cache/$release" </dev/null >&2 || status=$?
    find "$group" -depth -type d -exec rmdir {} +
    cat "$root/root/try.log" || status=1
    return "$status"
}

try_packages() {
    local release=$1 packages=$own_packages
    if [ "$release" != "$own_release" ]; then make_packages "$release" || return 0; fi
    make_root "$release" root
    # Without a network apt-get update warns and succeeds.
    inside "$root" root 'apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends systemd curl' \
        >"$cache/$release.log" 2>&1 || true
    if apt_was_offline "$cache/$release.log"; then
        drop_root
        skip "Debian's packages are not reachable"
    fi
    cp "$packages"/lensd*.deb "$root/root/lensd"
    check "$release: the packages" booted "$root" tests/packages_inside.sh || true
    drop_root
}

try_release() {
    local release=$1 account root home archive
    mkdir -p "$cache/$release/archives/partial"
    need_archive "$release" "${included[@]}" || { check "$release: a root" false || return 0; }
    if [ -n "$own_packages" ]; then
        try_packages "$release"
        return
    fi
    for account in "${accounts[@]}"; do
        make_root "$release" "$account"
        check "$release, $account: ./dev run" run_answers "$root" "$account" "$home" || true
        ! $has_tests || check "$release, $account: ./dev test${tests:+ $tests}" inside "$root" "$account" "./dev test $tests" || true
        drop_root
    done
}

own_release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
if [ "${1:-}" = --first-answer ]; then
    # As a reader of the README does it: what a newer compiler warns of is no error.
    accounts=(root) has_tests=false CI=''
    shift
elif [ "${1:-}" = --quick ]; then
    # Not the stand-in for CUDA: its C++ takes half of the time, and is the same on each release.
    accounts=(root) kind=quick tests='lint unit -fake_cuda -circles -names' fresh=''
    read -ra included <<<"${included[*]} ${LENSD_DISTROS_PACKAGES:?names of Debian packages}"
    shift
    [ $# -gt 0 ] || set -- "$([ "$own_release" = trixie ] && echo bookworm || echo trixie)"
elif [ "${1:-}" = --packages ]; then
    own_packages=${2:?--packages needs a folder}
    shift 2
    compgen -G "$own_packages/lensd_*.deb" >/dev/null || skip "there are no packages in $own_packages; make them with ./dev deb"
fi
[ $# -gt 0 ] || set -- bookworm trixie
[ "$(id -u)" -eq 0 ] || skip 'only root can make the root folder of another system; run it as root'
for program in mmdebstrap unshare curl git; do
    command -v "$program" >/dev/null || skip "$program is not installed"
done
mkdir -p "$cache"
# What become_inside mounts.
unshare --mount --pid --fork --kill-child -- sh -ec 'mount -t proc proc "$1" && mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1"
    mount -t tmpfs tmpfs "$1" && mount --rbind -o ro /sys "$1"' _ "$cache" 2>/dev/null || skip 'namespaces or mounts are not allowed here'
for release in "$@"; do
    [[ $release =~ ^(bookworm|trixie)$ ]] || { say "'$release' is not a release that lensd is tested on: bookworm, trixie"; exit 2; }
done
for release in "$@"; do try_release "$release"; done
total
