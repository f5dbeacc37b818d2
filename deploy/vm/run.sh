#!/bin/bash
# run.sh DIR RUN SECONDS: boots the guest of DIR under software emulation, runs RUN/job.sh in it as root with RUN mounted at
# /share, powers off. The exit code is the job's; the console is in RUN/console.log, the kernel's messages in RUN/dmesg.txt.
# From inside, the host's loopback is 10.0.2.2.
set -u
DIR=${1:?usage: run.sh DIR RUN SECONDS}; RUN=$(realpath "$2"); LIMIT=${3:-600}
rm -f "$RUN/rc"
cat > "$RUN/init.sh" <<'I'
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /tmp; mkdir -p /dev/pts; mount -t devpts devpts /dev/pts
for i in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do ln -sf /proc/self/${i#*:} /dev/${i%:*}; done; echo 5 > /proc/sys/kernel/printk
ip link set lo up; IF=$(ls /sys/class/net | grep -v '^lo$' | head -1)
[ -n "$IF" ] && { ip link set $IF up; ip addr add 10.0.2.15/24 dev $IF; ip route add default via 10.0.2.2; }
hostname guest
echo "GUEST_UP $(cut -d' ' -f1 /proc/uptime) $(uname -r)"
cd /share; bash /share/job.sh > /share/job.log 2>&1; rc=$?
dmesg > /share/dmesg.txt; echo $rc > /share/rc; sync
echo "GUEST_RC=$rc uptime=$(cut -d' ' -f1 /proc/uptime)"; echo o > /proc/sysrq-trigger; sleep 5
I
timeout "$LIMIT" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 1G -display none -no-reboot -monitor none \
  -serial "file:$RUN/console.log" -kernel "$DIR/vmlinuz" -initrd "$DIR/boot.gz" \
  -append "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on tsc=reliable no_timer_check" \
  -drive "file=$DIR/root.img,if=none,id=r0,format=raw,readonly=on" -device virtio-blk-pci,drive=r0 \
  -virtfs "local,path=$RUN,mount_tag=share,security_model=none" \
  -netdev user,id=n0 -device virtio-net-pci,netdev=n0,romfile= -object rng-random,id=rng0,filename=/dev/urandom -device virtio-rng-pci,rng=rng0 2> "$RUN/qemu.err"
q=$?
[ -f "$RUN/rc" ] && exit "$(cat "$RUN/rc")"
echo "the guest ended without a result: qemu exit $q (124 is the time limit of $LIMIT s)"; tail -5 "$RUN/console.log"; exit 99
