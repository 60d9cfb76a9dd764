#!/usr/bin/env bash
# Shows that the simulator notices every deliberate bug of src/mutant.h: mutants.sh BUILD-DIR [NAME ...]
#
# For each one, the files that mention it are compiled anew and linked in front of the build's own
# libraries; the result runs seeds of the shapes that fit until one fails. Prints how many it took.
# A mutant that survives means that the checks are too weak, and fails the test.
set -euo pipefail

# Seeds tried of each shape.
declare -A budget=([sprint]=20000 [storm]=3000 [rounds]=12000 [members]=1500 [handover]=8000
    [leases]=5000)
seconds=${MUTANT_SECONDS:-100} # for one shape

build=$(realpath "$1")
shift
source=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

list() {
    printf '#include "mutant.h"\n#define X(name, text, shapes) @ name | text | shapes\nKEEL_MUTANTS(X)\n' |
        cc -E -P -I "$source/src" - | tr '@' '\n' |
        sed -n 's/^ *\([A-Z_]*\) *| *"\(.*\)" *| *"\(.*\)" *$/\1|\2|\3/p'
}

compile() { # NAME FILE -> object
    local name=$1 file=$2 object call
    object=$work/$name/$(echo "${file#"$source"/src/}" | tr / _).o
    call=$(grep -F -- "-c $(realpath --relative-to="$build" "$file")" "$work/calls" | head -1)
    call=${call/ -o *.o -c/ -o $object -DKEEL_MUTANT=MUTANT_$name -c}
    (cd "$build" && eval "${call/-MD -MQ*-o/-o}" 2>"$work/$name/compile.txt") ||
        { cat "$work/$name/compile.txt" >&2; return 1; }
    echo "$object"
}

try() { # NAME SHAPES -> a line of the table
    local name=$1 shapes=$2 sim=$work/$1/keel-sim objects='' file shape out seed code
    mkdir "$work/$name"
    for file in $(grep -rlw "MUTANT($name)" "$source/src" --include='*.c'); do
        objects+=" $(compile "$name" "$file")" || return 1
    done
    (cd "$build" && eval "$(sed "s|-o tests/sim/keel-sim|-o $sim $objects|" "$work/link")") || return 1
    for shape in $shapes; do
        code=0
        out=$(timeout "$seconds" "$sim" --shape "$shape" --seed 1 --count "${budget[$shape]}" 2>&1) || code=$?
        [ "$code" = 0 ] || [ "$code" = 124 ] && continue
        seed=$(echo "$out" | sed -n 's/^replay: .*--seed \([0-9]*\) .*/\1/p' | tail -1)
        printf '%-28s %-8s %6s  %s\n' "$name" "$shape" "$seed" \
            "$(echo "$out" | grep -m1 -E 'FAILED|assert|fatal|Assert' | sed 's/FAILED at [0-9]* ms: //' | cut -c1-90)"
        rm -rf "${work:?}/$name"
        return
    done
    printf '%-28s SURVIVED %s\n' "$name" "$shapes"
}

cd "$source"
ninja -C "$build" -t commands tests/sim/keel-sim >"$work/calls"
tail -1 "$work/calls" >"$work/link"
list >"$work/list"
[ $# = 0 ] || { grep -E "^($(IFS='|'; echo "$*"))\|" "$work/list" >"$work/some"; mv "$work/some" "$work/list"; }

printf '%-28s %-8s %6s  %s\n' mutant shape seeds 'what was noticed'
while IFS='|' read -r name _ shapes; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
    try "$name" "$shapes" >"$work/$name.txt" || echo "$name: cannot be built" >"$work/$name.txt" &
done <"$work/list"
wait
cat "$work"/*.txt | grep -v '^$'
! grep -lE 'SURVIVED|cannot be built' "$work"/*.txt >/dev/null
