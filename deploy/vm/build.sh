#!/bin/bash
# build.sh DIR: a Debian guest for the initiator tests in DIR: root.img, vmlinuz and boot.gz. Built once, kept until this
# script changes. Needs root, mmdebstrap, busybox-static, cpio, kmod, e2fsprogs; takes about a minute.
set -euo pipefail
SELF=$(realpath "$0"); DIR=${1:?usage: build.sh DIR}; mkdir -p "$DIR"; DIR=$(realpath "$DIR"); cd "$DIR"
export PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin
stamp=$(sha256sum < "$SELF" | cut -d' ' -f1)
if [ -f root.img ] && [ "$(cat stamp 2> /dev/null)" = "$stamp" ]; then exit 0; fi
rm -rf root root.img kernel boot.gz vmlinuz stamp

# The mirror that this machine's apt uses; the guest's suite may differ from the machine's.
MIRROR=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | sort | uniq -c | sort -rn | awk '{print $2; exit}')
[ -n "$MIRROR" ] || { echo "apt has no package lists: run 'apt-get update' first" >&2; exit 1; }
mmdebstrap --mode=root --variant=essential --quiet \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --include=kmod,iproute2,procps,udev,nvme-cli,fio,xfsprogs,e2fsprogs,btrfs-progs,sqlite3 trixie root "deb $MIRROR trixie main"

# The kernel is unpacked, not installed, with an apt whose state is its own.
A=$(mktemp -d); trap 'rm -rf "$A"' EXIT
mkdir -p "$A"/{state/lists/partial,cache/archives/partial,etc}; : > "$A/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $MIRROR trixie main" > "$A/etc/sources.list"
opts=(-o Dir::State="$A/state" -o Dir::State::status="$A/status" -o Dir::Cache="$A/cache" -o Dir::Etc::sourcelist="$A/etc/sources.list" -o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User=root)
apt-get "${opts[@]}" -q update > /dev/null
package=$(apt-cache "${opts[@]}" depends linux-image-amd64 | awk '/Depends: linux-image/{print $2; exit}')
(cd "$A" && apt-get "${opts[@]}" -q download "$package" > /dev/null && dpkg -x "$package"_*.deb "$DIR/kernel")

src=$(dirname "$(find kernel -name modules.builtin | head -1)"); version=$(basename "$src"); dst=root/usr/lib/modules/$version
cp "$(find kernel -name 'vmlinuz*' -type f | head -1)" vmlinuz
mkdir -p "$dst" root/share root/mnt; cp "$src"/modules.builtin "$src"/modules.builtin.modinfo "$src"/modules.order "$dst"/
for part in drivers/nvme drivers/block drivers/virtio drivers/net/virtio_net.ko* drivers/net/net_failover.ko* drivers/char/hw_random \
            fs/ext4 fs/jbd2 fs/mbcache.ko* fs/xfs fs/btrfs fs/overlayfs fs/9p fs/netfs fs/fscache fs/configfs fs/nls \
            net/core net/9p net/802 net/tls net/handshake crypto arch/x86/crypto lib block; do
  for f in "$src"/kernel/$part; do
    if [ -e "$f" ]; then mkdir -p "$dst/kernel/$(dirname "$part")"; cp -r "$f" "$dst/kernel/$(dirname "$part")/"; fi
  done
done
find "$dst" -name '*.ko.xz' -exec xz -d {} +
depmod -b root "$version" 2> /dev/null || true

# A small initramfs: the modules for the disk and the share, an overlay in memory over the read-only image, then the job.
T=$(mktemp -d); mkdir -p "$T"/{bin,dev,proc,sys,ro,new,rw,lib/modules}; cp /bin/busybox "$T/bin/"; : > "$T/order"
for m in virtio_pci virtio_blk virtio_net ext4 overlay 9pnet_virtio 9p crc32c_generic; do
  { modprobe -d root -S "$version" --show-depends $m 2> /dev/null || true; } | awk '/^insmod/{print $2}' | while read -r f; do
    b=$(basename "$f"); cp "$f" "$T/lib/modules/$b"; grep -qx "$b" "$T/order" || echo "$b" >> "$T/order"; done
done
cat > "$T/init" <<'I'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for m in $(cat /order); do insmod /lib/modules/$m 2>/dev/null; done
i=0; while [ ! -b /dev/vda ] && [ $i -lt 50 ]; do sleep 0.1; i=$((i+1)); done
mount -t ext4 -o ro,noload /dev/vda /ro
mount -t tmpfs -o size=60% tmpfs /rw; mkdir -p /rw/u /rw/w
mount -t overlay overlay -o lowerdir=/ro,upperdir=/rw/u,workdir=/rw/w /new
mkdir -p /new/proc /new/sys /new/dev /new/share
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /new/share || echo "9p mount failed"
mount -o move /proc /new/proc; mount -o move /sys /new/sys; mount -o move /dev /new/dev
exec switch_root /new /bin/bash /share/init.sh
I
chmod +x "$T/init"; (cd "$T" && find . | cpio -o -H newc --quiet | gzip -1) > boot.gz; rm -rf "$T"
mke2fs -q -t ext4 -O ^has_journal -d root root.img "$(( $(du -sm root | cut -f1) + 200 ))M"
rm -rf root kernel
echo "$stamp" > stamp
