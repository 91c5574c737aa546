#!/usr/bin/env bash
# In a clean Debian root, with lensd's packages beside the tree (distros.sh --packages): they install, the service's user
# serves and answers a photo, an upgrade keeps the settings, and a purge leaves nothing behind. Systemd does not run here:
# its unit is verified, and its command is started as its user.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
export DEBIAN_FRONTEND=noninteractive
photo=tests/data/digits/drawn/7_paper.png
unit=/lib/systemd/system/lensd.service

fail() {
    echo "packages: $*" >&2
    exit 1
}

install_packages() {
    apt-get install -qy --no-install-recommends "$@" >/tmp/apt.log 2>&1 || { tail -n 20 /tmp/apt.log >&2; fail "apt does not install $*"; }
}

# serve: the unit's command as the unit's user answers a photo.
serve() {
    local command user server status=1
    command=$(sed -n 's/^ExecStart=//p' "$unit")
    user=$(sed -n 's/^User=//p' "$unit")
    install -d -o "$user" /tmp/run
    rm -f /tmp/run/port
    # shellcheck disable=SC2086  # a command and its arguments
    setpriv --reuid "$user" --regid "$user" --clear-groups env XDG_CACHE_HOME=/tmp/run \
        timeout 300 $command --port 0 --port-file /tmp/run/port &
    server=$!
    while [ ! -s /tmp/run/port ] && kill -0 "$server"; do sleep 0.2; done
    curl -sS --retry 20 --retry-all-errors --retry-delay 1 --data-binary "@$photo" \
        "http://127.0.0.1:$(cat /tmp/run/port)/predict" | grep '"label":"7"' && status=0
    kill "$server"
    wait "$server" || status=1
    [ "$status" -eq 0 ] || fail 'the installed program does not answer, or ends with an error'
}

apt-get update -q >/dev/null
install_packages ./lensd_*.deb systemd curl
systemd-analyze verify "$unit" || fail 'systemd finds faults in the unit'
[ "$(stat -c %U /usr/bin/lensd)" = root ] || fail 'the program does not belong to root'
[[ $(dpkg-query -W -f='${Version}' lensd) == "$(lensd --version | cut -d' ' -f2)~"* ]] ||
    fail "lensd --version is $(lensd --version)"
for path in /usr/share/bash-completion/completions/lensd /usr/share/zsh/vendor-completions/_lensd \
    /usr/share/fish/vendor_completions.d/lensd.fish /usr/share/lensd/openapi.yaml /usr/share/lensd/export; do
    [ -e "$path" ] || fail "$path is missing"
done
serve
if compgen -G './lensd-cuda_*.deb' >/dev/null; then
    install_packages ./lensd-cuda_*.deb
    serve
    dpkg --purge lensd-cuda >/dev/null
fi

# The same package under a higher version.
echo '# mine' >>/etc/lensd/environment
dpkg-deb -R ./lensd_*.deb /tmp/next
sed -i 's/^Version: .*/&+next/' /tmp/next/DEBIAN/control
dpkg-deb -b /tmp/next /tmp/next.deb >/dev/null
install_packages /tmp/next.deb
grep -qx '# mine' /etc/lensd/environment || fail 'the upgrade lost a changed setting'
serve

mkdir -p /var/cache/lensd
apt-get remove -qy lensd >/dev/null 2>&1
[ ! -e /usr/bin/lensd ] || fail 'the program is still there after remove'
[ -e /etc/lensd/environment ] || fail 'remove lost the settings'
dpkg --purge lensd >/dev/null
for path in /etc/lensd /var/cache/lensd /usr/share/lensd "$unit"; do
    [ ! -e "$path" ] || fail "$path is still there after purge"
done
