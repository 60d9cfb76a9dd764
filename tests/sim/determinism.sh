#!/usr/bin/env bash
# The same seeds give the same traces: determinism.sh KEEL-SIM
set -euo pipefail
for shape in sprint members storm rounds handover; do
    first=$("$1" --shape "$shape" --seed 7 --count 20 | grep -o 'hash .*')
    again=$("$1" --shape "$shape" --seed 7 --count 20 | grep -o 'hash .*')
    other=$("$1" --shape "$shape" --seed 8 --count 20 | grep -o 'hash .*')
    [ "$first" = "$again" ] || { echo "$shape: $first, then $again"; exit 1; }
    [ "$first" != "$other" ] || { echo "$shape: other seeds give $other too"; exit 1; }
done
