#!/bin/bash
# over-tcp.sh [SECONDS]: raidd with RAM-backed members over loopback NVMe/TCP, one core for the target and one for the
# initiator. Prints one line for each point: rate, latency, the target core's busy share. The binaries must be built:
# cargo build --release --workspace --bins
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=${CARGO_TARGET_DIR:-target}/release; SECONDS_EACH=${1:-3}
DIR=$(mktemp -d); trap 'kill "$RAIDD" 2> /dev/null; wait "$RAIDD" 2> /dev/null; rm -rf "$DIR"' EXIT
"$BIN/raidd" serve --http none --cores 0 --polling busy --buffer-mib 256 --state-dir "$DIR" > "$DIR/log" 2>&1 & RAIDD=$!
ctl() { "$BIN/raidctl" --server "unix:$DIR/control.sock" "$@" > /dev/null; }
for _ in $(seq 100); do ctl status 2> /dev/null && break; sleep 0.1; done
PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])' 2> /dev/null || echo 14420)
ctl array create one --member ram:512MiB:one
ctl volume create one v --level 0 --policy none
ctl array create five $(for i in 1 2 3 4 5; do echo --member ram:192MiB:five$i; done)
ctl volume create five v --level 5 --policy none
for a in one five; do ctl export create $a/v --nqn nqn.2026-11.dev.raidd:$a --listen 127.0.0.1:$PORT --any-host; done
for a in one five; do
  for point in "randread 4096 1" "randread 4096 32" "randread 4096 128" "randwrite 4096 1" "randwrite 4096 32" "randwrite 4096 128" "read 131072 32" "write 131072 32"; do
    set -- $point
    # What was written once is read from memory, not from the kernel's zero page.
    "$BIN/raidbench" --target 127.0.0.1:$PORT --nqn nqn.2026-11.dev.raidd:$a --rw "$1" --bs "$2" --qd "$3" --time "$SECONDS_EACH" \
      --size 256MiB --core 1 --target-pid $RAIDD --json "$DIR/out.json" > "$DIR/out.txt" || { cat "$DIR/out.txt"; exit 1; }
    printf '%-5s %-9s %7s depth %-4s ' $a "$1" "$2" "$3"
    grep -E 'IOPS|MiB/s|p99 |busy|core' "$DIR/out.txt" | tr -s ' \n|' ' '; echo
  done
done
