#!/usr/bin/env bash
# In a clean Debian root that systemd runs, with lensd's packages beside the tree (distros.sh --packages): they install, the
# service starts as its own user and answers a photo, an upgrade restarts it and keeps the settings, and a purge leaves
# nothing behind.
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

main_pid() {
    systemctl show -P MainPID lensd.service
}

# serves: the service runs as its own user, and answers a photo.
serves() {
    systemctl is-active --quiet lensd.service || { journalctl -u lensd.service -n 30 >&2; fail 'the service does not run'; }
    [ "$(ps -o user= -p "$(main_pid)")" = lensd ] || fail 'the service is not the user lensd'
    curl -sS --retry 60 --retry-all-errors --retry-delay 1 --data-binary "@$photo" \
        "http://127.0.0.1:$(cat /run/lensd/port)/predict" | grep '"label":"7"' || fail 'the service does not answer'
}

# Any free port, because the network is that of the machine underneath.
mkdir -p /etc/systemd/system/lensd.service.d
printf '[Service]\nEnvironment=LENSD_PORT=0 LENSD_PORT_FILE=/run/lensd/port\n' >/etc/systemd/system/lensd.service.d/port.conf
install_packages ./lensd_*.deb
systemd-analyze verify "$unit" || fail 'systemd finds faults in the unit'
[ "$(stat -c %U /usr/bin/lensd)" = root ] || fail 'the program does not belong to root'
[[ $(dpkg-query -W -f='${Version}' lensd) == "$(lensd --version | cut -d' ' -f2)~"* ]] ||
    fail "lensd --version is $(lensd --version)"
for path in /usr/share/bash-completion/completions/lensd /usr/share/zsh/vendor-completions/_lensd \
    /usr/share/fish/vendor_completions.d/lensd.fish /usr/share/lensd/openapi.yaml /usr/share/lensd/export; do
    [ -e "$path" ] || fail "$path is missing"
done
serves
if compgen -G './lensd-cuda_*.deb' >/dev/null; then
    install_packages ./lensd-cuda_*.deb
    serves
    dpkg --purge lensd-cuda >/dev/null
fi

# The same package under a higher version.
echo '# mine' >>/etc/lensd/environment
dpkg-deb -R ./lensd_*.deb /tmp/next
sed -i 's/^Version: .*/&+next/' /tmp/next/DEBIAN/control
dpkg-deb -b /tmp/next /tmp/next.deb >/dev/null
before=$(main_pid)
install_packages /tmp/next.deb
[ "$(main_pid)" != "$before" ] || fail 'the upgrade did not restart the service'
grep -qx '# mine' /etc/lensd/environment || fail 'the upgrade lost a changed setting'
serves

apt-get remove -qy lensd >/dev/null 2>&1
[ ! -e /usr/bin/lensd ] || fail 'the program is still there after remove'
! systemctl is-active --quiet lensd.service || fail 'the service still runs after remove'
[ -e /etc/lensd/environment ] || fail 'remove lost the settings'
dpkg --purge lensd >/dev/null
for path in /etc/lensd /var/cache/lensd /usr/share/lensd "$unit"; do
    [ ! -e "$path" ] || fail "$path is still there after purge"
done
