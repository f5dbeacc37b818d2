# The job that runs inside the guest: a Linux initiator connects to raidd and uses the volume while a member dies and is
# replaced. The host answers requests through files in /share: touch ask-NAME, wait for done-NAME.
set -eu
. /share/env    # ADDR PORT NQN
fail() { echo "FAILED: $*"; exit 1; }
step() { echo "== $(cut -d' ' -f1 /proc/uptime) $*"; }
ask() {
  touch "/share/ask-$1"
  for _ in $(seq 1 600); do
    [ -e "/share/done-$1" ] && { [ "$(cat "/share/done-$1")" = ok ] || fail "the host could not $1: $(cat "/share/done-$1")"; return 0; }
    sleep 0.5
  done
  fail "the host did not answer ask-$1"
}
# Device names do not follow the namespace ID, so look the subsystem up.
find_ns() {
  for s in /sys/class/nvme-subsystem/*; do
    [ "$(cat "$s/subsysnqn")" = "$NQN" ] || continue
    for n in "$s"/nvme*n*; do [ -e "$n" ] && basename "$n" | grep -qx 'nvme[0-9]*n[0-9]*' && { basename "$n"; return 0; }; done
  done
  return 1
}
connect() {
  nvme connect -t tcp -a "$ADDR" -s "$PORT" -n "$NQN" -i 2 "$@"
  for _ in $(seq 1 100); do NS=$(find_ns) && [ -b "/dev/$NS" ] && { DEV=/dev/$NS; return 0; }; sleep 0.1; done
  fail "no namespace appeared after connect"
}

modprobe nvme-tcp
step discover
nvme discover -t tcp -a "$ADDR" -s "$PORT" | tee /tmp/discover
grep -q "subnqn: *$NQN" /tmp/discover || fail "discovery does not list $NQN"

step connect
connect
nvme list

step identify
nvme id-ctrl "/dev/${NS%n*}" > /tmp/id-ctrl
grep -q "^subnqn *: $NQN" /tmp/id-ctrl || fail "id-ctrl has another subnqn"
grep -Eq '^ioccsz *: *(0x)?[0-9a-f]+' /tmp/id-ctrl || fail "id-ctrl has no ioccsz"
grep -Eq '^kas *: *(0x)?[1-9]' /tmp/id-ctrl || fail "id-ctrl has KAS 0"
nvme id-ns "$DEV" > /tmp/id-ns
grep -E '^(nsze|nguid|eui64|lbaf)' /tmp/id-ns
grep -Eq '^nguid *: *0+$' /tmp/id-ns && fail "NGUID is zero"
nvme smart-log "$DEV" > /dev/null || fail "smart-log"
SIZE=$(blockdev --getsize64 "$DEV"); [ "$SIZE" -gt 600000000 ] || fail "size $SIZE is too small"

step "fio 4 KiB random write, verified"
fio --name=rw4k --filename="$DEV" --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --iodepth=16 --size=24M --verify=crc32c --verify_fatal=1 --output=/tmp/fio1 || { cat /tmp/fio1; fail fio1; }
step "fio 128 KiB sequential write, verified"
fio --name=seq128k --filename="$DEV" --direct=1 --ioengine=libaio --rw=write --bs=128k --iodepth=8 --offset=64M --size=96M --verify=crc32c --verify_fatal=1 --output=/tmp/fio2 || { cat /tmp/fio2; fail fio2; }

step "flush and FUA"
fio --name=sync --filename="$DEV" --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --size=2M --offset=200M --fdatasync=4 --verify=crc32c --output=/tmp/fio3 || { cat /tmp/fio3; fail fio3; }
nvme flush "$DEV" -n 1 || fail "flush command"
head -c 4096 /dev/urandom > /tmp/block
BS=$(blockdev --getss "$DEV"); NLB=$((4096 / BS - 1)); LBA=$((260 * 1048576 / BS))
nvme write "$DEV" -s $LBA -c $NLB -z 4096 -d /tmp/block -f || fail "FUA write"
nvme read "$DEV" -s $LBA -c $NLB -z 4096 -d /tmp/block.read || fail "read of the FUA write"
cmp /tmp/block /tmp/block.read || fail "the FUA write reads back differently"
nvme compare "$DEV" -s $LBA -c $NLB -z 4096 -d /tmp/block || fail "compare of equal data"
head -c 4096 /dev/urandom > /tmp/other
if nvme compare "$DEV" -s $LBA -c $NLB -z 4096 -d /tmp/other 2> /tmp/compare.err; then fail "compare of different data succeeded"; fi

step "discard and write zeroes read back as zeros"
dd if=/dev/urandom of="$DEV" bs=1M count=8 seek=300 oflag=direct status=none
blkdiscard -o $((300 * 1048576)) -l $((3 * 1048576 + 4096)) "$DEV" || fail blkdiscard
blkdiscard -z -o $((304 * 1048576 + 8192)) -l $((1048576 + 12288)) "$DEV" || fail "blkdiscard -z"
blockdev --flushbufs "$DEV"
[ "$(dd if="$DEV" bs=4096 skip=$((300 * 256)) count=769 iflag=direct status=none | tr -d '\0' | wc -c)" = 0 ] || fail "discarded blocks are not zero"
[ "$(dd if="$DEV" bs=4096 skip=$((304 * 256 + 2)) count=259 iflag=direct status=none | tr -d '\0' | wc -c)" = 0 ] || fail "zeroed blocks are not zero"
[ "$(dd if="$DEV" bs=4096 skip=$((300 * 256 + 769)) count=1 iflag=direct status=none | tr -d '\0' | wc -c)" -gt 3000 ] || fail "the block after the discard lost its data"

step "mkfs.ext4 with a tree of files"
mkfs.ext4 -q -F "$DEV" 300m || fail mkfs.ext4
mount "$DEV" /mnt
tree() { for d in a b c; do mkdir -p "$1/$d"; for i in $(seq 1 12); do head -c $((RANDOM * 7 + 1)) /dev/urandom > "$1/$d/$i"; done; done; }
tree /mnt/one
step "a member fails, files go on"
ask fail
tree /mnt/two; sync
step "the member is replaced, files go on meanwhile"
ask replace
tree /mnt/three; sync
(cd /mnt && find . -type f | sort | xargs sha256sum) > /tmp/sums.ext4
umount /mnt
ask rebuilt
fsck.ext4 -f -n "$DEV" || fail fsck.ext4
mount -o ro "$DEV" /mnt; (cd /mnt && sha256sum -c --quiet /tmp/sums.ext4) || fail "ext4 checksums"; umount /mnt

step "mkfs.xfs with a tree of files"
mkfs.xfs -q -f "$DEV" || fail mkfs.xfs
mount "$DEV" /mnt; tree /mnt/one; tree /mnt/two; sync
(cd /mnt && find . -type f | sort | xargs sha256sum) > /tmp/sums.xfs
umount /mnt; xfs_repair -n "$DEV" > /tmp/xfs_repair 2>&1 || { cat /tmp/xfs_repair; fail xfs_repair; }

step "disconnect, reconnect, checksums again"
nvme disconnect -n "$NQN" || fail disconnect
connect -g -G
mount "$DEV" /mnt; (cd /mnt && sha256sum -c --quiet /tmp/sums.xfs) || fail "xfs checksums after reconnect with digests"
umount /mnt
nvme disconnect -n "$NQN"
dmesg | grep -iE 'nvme.*(error|timeout|reset|fail)' | grep -v 'failed to read smart' && fail "the kernel complained" || true
step "all steps passed"
