# Sourced by the scripts that `cargo xtask crash` sends to the guest. NQN is set; the file systems are /mnt/NAME.
fail() { echo "$*"; exit 1; }
# Each system's device by its namespace ID: names do not follow it.
device() {
  local want n
  case $1 in ext4) want=1 ;; xfs) want=2 ;; btrfs) want=3 ;; esac
  for n in /sys/block/nvme*; do
    basename "$n" | grep -qx 'nvme[0-9]*n[0-9]*' && [ "$(cat "$n/nsid")" = $want ] && { echo "/dev/$(basename "$n")"; return 0; }
  done
  return 1
}
all() { echo ext4 xfs btrfs; }
# Does $1 for each system at the same time.
each() {
  local s pids=() names=() i rc=0
  for s in $(all); do "$1" "$s" > "/tmp/each.$s" 2>&1 & pids+=($!); names+=("$s"); done
  for i in "${!pids[@]}"; do
    wait "${pids[$i]}" || { rc=1; echo "$1 ${names[$i]} failed:"; tail -n 30 "/tmp/each.${names[$i]}"; }
  done
  if [ $rc != 0 ]; then dmesg | tail -n 15; fi
  return $rc
}
# The kernel itself finds its way back to a target that is gone for a while. What is in flight fails after a second: a file
# system that lived on would believe in writes that the drives have lost.
connect() {
  modprobe nvme-tcp; modprobe ext4; modprobe xfs; modprobe btrfs
  nvme connect -t tcp -a 10.0.2.2 -s "$1" -n "$NQN" -i 2 --reconnect-delay=1 --ctrl-loss-tmo=600 --fast_io_fail_tmo=1
  live
}
live() {
  local s n ok
  for _ in $(seq 1 600); do
    ok=1
    grep -qx live /sys/class/nvme/nvme*/state 2> /dev/null || ok=0
    for s in $(all); do [ -b "$(device "$s")" ] || ok=0; done
    [ $ok = 1 ] && return 0
    sleep 0.1
  done
  cat /sys/class/nvme/nvme*/state; ls /sys/block; dmesg | tail -n 20
  fail "the kernel did not find the volumes again within 60 s"
}
# Which disks the kernel has; one that was taken for deleted comes back as another one.
disks() { for s in $(all); do echo "$s $(cat "/sys/block/$(basename "$(device "$s")")/diskseq")"; done; }
make_one() {
  case $1 in
    ext4) mkfs.ext4 -q -F "$(device ext4)" ;;
    xfs) mkfs.xfs -q -f "$(device xfs)" ;;
    btrfs) mkfs.btrfs -q -f "$(device btrfs)" ;;
  esac
}
make() { mkdir -p /mnt/ext4 /mnt/xfs /mnt/btrfs; each make_one; }
mount_one() { mount -t "$1" "$(device "$1")" "/mnt/$1"; }
mount_all() { each mount_one; }
umount_one() { umount "/mnt/$1"; }
umount_all() { each umount_one; }
# Folders for a round's files; those of the round before the last are deleted meanwhile.
begin() {
  local s
  for s in $(all); do mkdir "/mnt/$s/$1"; sync "/mnt/$s"; done
  (for s in $(all); do rm -rf "/mnt/$s/$(($1 - 2))"; done) > /dev/null 2>&1 < /dev/null &
}
# After a crash of the target: nothing of what the kernel holds may reach the volumes any more.
abandon() {
  for _ in $(seq 1 100); do
    # Not by `mountpoint`: a dead file system does not even answer that.
    for s in $(all); do if grep -q " /mnt/$s " /proc/mounts; then umount "/mnt/$s" 2> /tmp/umount || true; fi; done
    grep -q ' /mnt/' /proc/mounts || { disks > /tmp/disks; echo 3 > /proc/sys/vm/drop_caches; return 0; }
    sleep 0.2
  done
  cat /tmp/umount; ps ax | tail -n 30; fail "the dead file systems cannot be unmounted"
}
fsck_one() {
  case $1 in
    ext4) e2fsck -f -n "$(device ext4)" ;;
    xfs) xfs_repair -n "$(device xfs)" ;;
    btrfs) btrfs check --readonly "$(device btrfs)" ;;
  esac
}
fsck_all() { each fsck_one; }
