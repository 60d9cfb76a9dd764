#!/usr/bin/env bash
# Seeds that no commit before this one has run, the same ones in every clone: fresh.sh KEEL-SIM SHAPE COUNT
set -euo pipefail
when=$(git -C "$(dirname "$0")" log -1 --format=%ct 2>/dev/null || echo 1)
exec "$1" --shape "$2" --seed "${when}00000" --count "$3"
