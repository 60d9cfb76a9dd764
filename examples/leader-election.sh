#!/bin/bash
# Leader election in shell: a file that is bound to a lease, created only by whoever finds none.
#
# The open in campaign() does all of it. `if=0`: only if there is no such file, so one of many candidates
# on any of the nodes wins. `ttl=N`: the file lives on a lease of N seconds that this host's node keeps
# renewing. `hold`: the file goes with the last close of descriptor 9, so at once when this script is
# killed. If the whole host is lost, it goes when the lease has expired.
set -eu

usage() {
    cat <<'TEXT'
usage: leader-election.sh DIR NAME [TTL] -- COMMAND [ARG...]

Waits until this candidate is the leader, then runs COMMAND for as long as it is. DIR is a directory
in a keelfs mount; the leader is whoever has created DIR/leader, which contains the leader's NAME.
TTL is that of the lease, in seconds (default 5).

COMMAND finds in KEEL_FENCE a number that grows with every new leader: pass it on to whatever must
refuse a leader that has been replaced. COMMAND is terminated when leadership is lost; leadership is
given up when COMMAND ends. The exit status is COMMAND's, or 70 when leadership was lost.

    leader-election.sh /mnt/keel/jobs "$(hostname)" -- run-the-nightly-job
TEXT
}

die() {
    printf 'leader-election: %s\n' "$1" >&2
    exit "${2:-1}"
}

case ${1:-} in
-h | --help)
    usage
    exit 0
    ;;
esac
if [ $# -lt 4 ]; then
    usage >&2
    exit 2
fi
dir=$1 name=$2 ttl=5
shift 2
if [ "$1" != -- ]; then
    ttl=$1
    shift
fi
if [ "$1" != -- ] || [ $# -lt 2 ]; then
    usage >&2
    exit 2
fi
shift
case $ttl in
'' | 0* | *[!0-9]*) die "TTL is a number of seconds, not '$ttl'" 2 ;;
esac
[ -d "$dir" ] || die "$dir is not a directory"
command -v inotifywait >/dev/null || die 'inotifywait is missing (on Debian: apt install inotify-tools)'

file=$dir/leader
job='' guard=''

say() {
    printf '%s: %s\n' "$name" "$1"
}

# Becomes a program that neither holds descriptor 9 nor outlives this script, however that ends. (The look at the
# parent is for a script that is killed before the kernel has been told.)
tied() {
    # shellcheck disable=SC2016
    exec setpriv --pdeathsig KILL \
        sh -c '[ "$PPID" = "$0" ] || exit 1; exec "$@"' $$ "$@" 9>&-
}

# The end of the work before the end of the leadership: descriptor 9 is closed when this script is gone.
# shellcheck disable=SC2317
stop() {
    trap - EXIT
    if [ -n "$job" ]; then
        kill "$job" 2>/dev/null || :
        wait "$job" || :
    fi
    kill "$watcher" ${guard:+"$guard"} 2>/dev/null || :
}

# Descriptor 8: names of entries that leave DIR, one a line, from here to the end of the script.
exec 8< <(tied inotifywait -m -e delete -e moved_from --format '%f' "$dir" 2>&1)
watcher=$!
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
while read -r -u 8 line; do
    [ "$line" != 'Watches established.' ] || break
done

# Returns when DIR/leader has gone, or else after $1 seconds. Fails when DIR can't be watched any longer.
wait_for_change() {
    local line until=$((SECONDS + $1)) status

    while [ "$SECONDS" -lt "$until" ]; do
        status=0
        read -r -t 1 -u 8 line || status=$?
        if [ "$status" -eq 0 ]; then
            [ "$line" != leader ] || return 0
        elif [ "$status" -le 128 ]; then # above: the time is up
            return 1
        fi
    done
}

# One attempt. When it succeeds, descriptor 9 is the leadership.
campaign() {
    [ ! -e "$file" ] || return 1
    if { exec 9>"$file@if=0,ttl=$ttl,hold"; } 2>/dev/null; then
        printf '%s\n' "$name" >&9 && return 0
        exec 9>&-
    fi
    [ -e "$file" ] || say "cannot create $file; trying again" >&2
    return 1
}

# The revision that created the file: no two leaders have the same one, and a later leader has a larger one.
fence() {
    timeout "$ttl" sed -n 's/^create_revision: //p' "$file@stat" 2>/dev/null
}

# Ends the work when the leadership ends before it. A lease can be lost while this script lives: the host was cut off.
guard() {
    while wait_for_change "$ttl" && [ "$(fence)" = "$KEEL_FENCE" ]; do :; done
    trap '' TERM
    kill "$job" 2>/dev/null || :
    exit 70
}

until campaign; do
    wait_for_change 5 || die "$dir can no longer be watched"
done
KEEL_FENCE=$(fence) || KEEL_FENCE=
[ -n "$KEEL_FENCE" ] || die "$file was lost as soon as it was won" 70
export KEEL_FENCE
say "leader, fence $KEEL_FENCE"

tied "$@" <&0 8<&- &
job=$!
(trap - EXIT INT && trap 'exit 143' TERM && guard) 9>&- &
guard=$!

status=0
wait "$job" || status=$?
job=
kill "$guard" 2>/dev/null || :
guard_status=0
wait "$guard" || guard_status=$?
guard=
if [ "$guard_status" -eq 70 ]; then
    say 'no longer the leader' >&2
    exit 70
fi
exit "$status"
