#!/bin/bash
# Keeps a rendered configuration in step with a file in a keelfs mount: an ordinary inotifywait loop, which
# hears of changes made on any node of the cluster.
#
# The directory is watched, not the file: a save by "write a new file, rename it over the old one" (vim,
# sed -i, mv) replaces the inode, and a watch on the file would stay with the old one.
set -eu

usage() {
    cat <<'TEXT'
usage: config-watch.sh FILE TEMPLATE OUT [-- RELOAD_COMMAND [ARG...]]

Renders TEMPLATE into OUT with the settings in FILE, now and after each change of FILE, on whichever
node it is made, and then runs RELOAD_COMMAND. FILE (DIR/FILE in a keelfs mount) has lines NAME=VALUE
(empty lines and lines starting with # are skipped); in TEMPLATE, {{NAME}} stands for the value.
OUT is replaced in one step and need not be in the mount. Runs until it is stopped.

    config-watch.sh /mnt/keel/conf/web nginx.conf.in /etc/nginx/nginx.conf -- nginx -s reload
TEXT
}

die() {
    printf 'config-watch: %s\n' "$1" >&2
    exit "${2:-1}"
}

case ${1:-} in
-h | --help)
    usage
    exit 0
    ;;
esac
if [ $# -lt 3 ] || { [ $# -gt 3 ] && { [ "$4" != -- ] || [ $# -eq 4 ]; }; }; then
    usage >&2
    exit 2
fi
file=$1 template=$2 out=$3
shift 3
[ $# -eq 0 ] || shift
case $file in
*/*) dir=${file%/*} ;;
*) dir=. ;;
esac
dir=${dir:-/} base=${file##*/}
[ -n "$base" ] || die "$file is a directory" 2
[ -d "$dir" ] || die "$dir is not a directory"
[ -r "$template" ] || die "$template cannot be read"
command -v inotifywait >/dev/null || die 'inotifywait is missing (on Debian: apt install inotify-tools)'

# Fills in the template ($2) with the settings ($1). A name without a value stays as it is, with a warning.
fill_in() {
    awk '
        NR == FNR {
            at = index($0, "=")
            if (at > 1 && $0 !~ /^#/)
                value[substr($0, 1, at - 1)] = substr($0, at + 1)
            next
        }
        {
            done = ""
            while (match($0, /\{\{[^{}]*\}\}/)) {
                name = substr($0, RSTART + 2, RLENGTH - 4)
                if (name in value)
                    text = value[name]
                else {
                    text = substr($0, RSTART, RLENGTH)
                    print "config-watch: no value for " name >"/dev/stderr"
                }
                done = done substr($0, 1, RSTART - 1) text
                $0 = substr($0, RSTART + RLENGTH)
            }
            print done $0
        }
    ' "$1" "$2"
}

# A look at FILE: everything is read first, so that OUT comes from one revision, whatever is written meanwhile.
render() {
    local settings

    if ! settings=$(cat -- "$file" 2>/dev/null); then
        printf 'no %s: %s stays as it is\n' "$file" "$out"
        return 0
    fi
    fill_in <(printf '%s\n' "$settings") "$template" >"$new" || die "cannot write $new"
    # A name in OUT's directory: mv within a file system replaces in one step.
    mv -- "$new" "$out" || die "cannot write $out"
    printf 'rendered %s\n' "$out"
    [ $# -eq 0 ] || "$@" || printf 'config-watch: %s failed with status %s\n' "$1" "$?" >&2
}

new=$out.new.$$
# Descriptor 8: names of entries of DIR that have changed or gone, one a line. It begins before the first
# rendering, so that no change falls between the two.
exec 8< <(exec setpriv --pdeathsig KILL inotifywait -m -e close_write -e moved_to -e delete \
    -e moved_from --format '%f' "$dir" 2>&1)
watcher=$!
trap 'kill "$watcher" 2>/dev/null || :; rm -f -- "$new"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
while read -r -u 8 line; do
    [ "$line" != 'Watches established.' ] || break
done

render "$@"
while read -r -u 8 line; do
    [ "$line" != "$base" ] || render "$@" 8<&-
done
die "$dir can no longer be watched"
