#!/usr/bin/env bash
# Runs every seed of regressions.txt: regressions.sh KEEL-SIM LIST
set -euo pipefail
sim=$1
list=$2
while read -r shape seed _; do
    case $shape in '' | \#*) continue ;; esac
    "$sim" --shape "$shape" --seed "$seed"
done <"$list"
