#!/usr/bin/env bash
# build.sh IMAGE:SUITE: a Debian of that suite that boots systemd and answers ssh, unless podman has it already.
# From Debian's packages alone; no image registry is asked. Needs root, mmdebstrap and podman.
set -euo pipefail
image=$1
suite=${image##*:}
here=$(cd "$(dirname "$0")" && pwd)
podman image exists "$image" && exit
packages=ca-certificates,dbus,iproute2,kmod,libpam-systemd,openssh-server,procps,python3,python3-apt,sudo,systemd,systemd-sysv

# The certificates that this machine trusts beyond Debian's (a proxy's), if there are any.
certificates=()
if compgen -G '/usr/local/share/ca-certificates/*.crt' > /dev/null; then
    certificates=(--customize-hook='copy-in /usr/local/share/ca-certificates /usr/local/share')
fi

# A fixed, old date on every file: the apt module must not take the image's package lists for fresh ones.
# shellcheck disable=SC2016 # mmdebstrap expands $1
SOURCE_DATE_EPOCH=1735689600 mmdebstrap --quiet --variant=minbase --include="$packages" \
    --aptopt='Acquire::Languages "none"' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    "${certificates[@]}" \
    --customize-hook='chroot "$1" update-ca-certificates --fresh > /dev/null' \
    --customize-hook='chroot "$1" systemctl set-default multi-user.target' \
    --customize-hook='chroot "$1" systemctl mask systemd-modules-load.service getty.target console-getty.service' \
    --customize-hook='rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/machine-id; : > "$1"/etc/machine-id' \
    --customize-hook="copy-in $here/ssh-keys.service /etc/systemd/system" \
    --customize-hook='chroot "$1" systemctl enable ssh-keys.service ssh.service' \
    "$suite" - |
    podman import --quiet --change 'CMD ["/sbin/init"]' --change 'STOPSIGNAL SIGRTMIN+3' \
        --change 'ENV container=podman' - "$image"
echo "built $image"
