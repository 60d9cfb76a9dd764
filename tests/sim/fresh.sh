#!/usr/bin/env bash
# Seeds that no commit before this one has run: fresh.sh KEEL-SIM SHAPE COUNT
set -euo pipefail
commits=$(git -C "$(dirname "$0")" rev-list --count HEAD 2>/dev/null || echo 1)
exec "$1" --shape "$2" --seed $((commits * 1000000)) --count "$3"
