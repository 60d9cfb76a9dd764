"""A log that is let go, and what a node does that needs what is gone."""

import os
import signal
import threading

import pytest

from keel import wait_for
from test_inotify import Watchers

KEPT = 2 << 20
FLAGS = ["--log-kept", str(KEPT)]
CONTENT = os.urandom(300_000)

pytestmark = pytest.mark.cluster(flags=FLAGS)


@pytest.fixture
def watch():
    watchers = Watchers()
    yield watchers
    for watcher in watchers.all:
        watcher.close()


def fill(c, i, directory, files=40):
    """More than the log keeps."""
    c.mkdir(i, directory)
    for n in range(files):
        c.write(i, f"{directory}/{n}", CONTENT + str(n).encode())


def let_go(c, behind):
    """The leader's log does not reach back to `behind` any more."""
    wait_for(lambda: int(c.status(c.leader())["first_index"]) > behind + 1, what="a log that was let go")


def tree(c, i, directory=""):
    def walk(path):
        found = {}
        for at, dirs, files in os.walk(path):
            dirs[:] = [name for name in dirs if "@" not in name]
            for name in files:
                with open(os.path.join(at, name), "rb") as file:
                    found[os.path.relpath(os.path.join(at, name), path)] = hash(file.read())
            for name in dirs:
                found[os.path.relpath(os.path.join(at, name), path)] = None
        return found
    return c.call(i, walk, directory, timeout=60)


def hashes_agree(c):
    def at(i):
        return c.status(i)["hash"]
    wait_for(lambda: len({at(i) for i in c.nodes()}) == 1, 30, "one state on all nodes")


def followed(c, i):
    """A follower that is taken away."""
    return [j for j in c.followers() if j != i][0]


@pytest.mark.sanitizer
def test_the_log_on_the_disk_stays_bounded(cluster):
    c = cluster
    fill(c, 1, "d", 100)  # 30 MB
    size = lambda i: sum(e.stat().st_size for e in os.scandir(os.path.join(c.dir, f"n{i}", "data", "wal")))
    for i in c.nodes():
        wait_for(lambda i=i: size(i) <= KEPT + 4 * (2 << 20), what=f"a short log of n{i}: {size(i)}")
    assert len(c.listdir(2, "d")) == 100


def test_how_much_log_is_kept_can_be_changed_at_each_start(make_cluster):
    c = make_cluster(nodes=1)
    content = {}
    for round, kept in enumerate([1 << 20, 1 << 30, 3 << 20]):
        for n in range(12):
            content[f"{round}-{n}"] = CONTENT[n:]
            c.write(1, f"{round}-{n}", CONTENT[n:])
        c.kill(1, "KILL" if round % 2 else "TERM")
        with open(os.path.join(c.dir, "flags"), "w") as file:
            file.write(f"--log-kept\n{kept}\n")
        c.start(1)
        for name in content:
            assert c.read(1, name) == content[name]


@pytest.mark.sanitizer
def test_a_node_that_was_down_for_too_long_is_sent_a_snapshot(cluster):
    c = cluster
    away = followed(c, 1)
    here = [i for i in c.nodes() if i != away]
    c.mkdir(1, "old")
    c.write(here[0], "old/gone", "1")
    c.write(here[0], "old/changed", "1")
    last = int(c.status(away)["last_index"])
    c.kill(away)
    fill(c, here[0], "new")
    c.unlink(here[0], "old/gone")
    c.write(here[0], "old/changed", "2")
    let_go(c, last)
    c.start(away)
    wait_for(lambda: c.status(away)["snapshots_installed"] == "1", 30)
    assert c.read(away, "old/changed") == b"2"
    assert not c.exists(away, "old/gone")
    assert tree(c, away) == tree(c, here[0])
    hashes_agree(c)
    assert sum(int(c.status(i)["snapshots_sent"]) for i in here) >= 1
    # and it is a member like any other
    c.write(away, "after", "3")
    assert c.read(here[1], "after") == b"3"
    c.kill(away)
    c.start(away)
    assert c.status(away)["snapshots_installed"] == "0"
    hashes_agree(c)


def test_a_new_node_gets_a_snapshot_when_the_log_does_not_reach_back(cluster):
    c = cluster
    fill(c, 1, "d")
    let_go(c, 1)
    c.add(4)
    wait_for(lambda: c.status(4)["snapshots_installed"] == "1", 30)
    assert tree(c, 4) == tree(c, 1)
    c.keelctl(1, "members", "promote", "n4", "--wait", timeout=30)
    hashes_agree(c)


def test_writes_go_on_while_a_snapshot_is_sent(cluster):
    c = cluster
    away = followed(c, 1)
    here = [i for i in c.nodes() if i != away]
    last = int(c.status(away)["last_index"])
    c.kill(away)
    fill(c, here[0], "d", 60)
    let_go(c, last)
    c.start(away)
    n = 0
    while c.status(away)["snapshots_installed"] == "0":
        c.write(here[0], f"meanwhile-{n}", "x")
        n += 1
        assert n < 5000
    for k in range(n):
        assert c.read(away, f"meanwhile-{k}") == b"x"
    hashes_agree(c)


def cut_and_fill(c, away, change):
    """A node that lives on, cut off, while the others change things and let their log go."""
    here = [i for i in c.nodes() if i != away]
    last = int(c.status(away)["last_index"])
    c.cut(away)
    wait_for(lambda: c.leader() in here)
    change(here[0])
    fill(c, here[0], "filled")
    let_go(c, last)
    c.heal(away)
    wait_for(lambda: c.status(away)["snapshots_installed"] == "1", 30)
    return here


def test_watchers_hear_of_what_a_snapshot_changes(make_cluster, watch):
    c = make_cluster(flags=FLAGS)
    away = followed(c, 1)
    c.mkdir(1, "d")
    for name in ("kept", "changed", "gone", "moved"):
        c.write(1, f"d/{name}", "1")
    c.mkdir(1, "d/sub")
    watcher = watch(c.path(away, "d"))

    def change(i):
        c.write(i, "d/changed", "2")
        c.unlink(i, "d/gone")
        c.rename(i, "d/moved", "d/sub/moved")
        c.write(i, "d/made", "new")
        c.call(i, lambda path: os.chmod(path, 0o600), "d/kept")
        c.mkdir(i, "d/made-dir")

    cut_and_fill(c, away, change)
    c.write(away, "d/end", "")
    lines = watcher.until("end")
    events = [line.rsplit(" ", 1)[0] for line in lines]
    for expected in [". changed MODIFY", ". gone DELETE", ". made CREATE", ". made CLOSE_WRITE,CLOSE", ". kept ATTRIB",
                     ". made-dir CREATE,ISDIR", ". moved MOVED_FROM", "sub moved MOVED_TO"]:
        assert events.count(expected) == 1, f"{expected} in {lines}"
    assert not any(" kept MODIFY" in line or " kept DELETE" in line for line in lines)


def test_open_files_live_through_a_snapshot(make_cluster, hand):
    c = make_cluster(flags=FLAGS)
    away = followed(c, 1)
    c.mkdir(1, "d")
    for name in ("kept", "changed", "gone"):
        c.write(1, f"d/{name}", f"old {name}")
    h = hand()
    kept, changed, gone = (h.open(c.path(away, f"d/{name}"), os.O_RDWR) for name in ("kept", "changed", "gone"))
    assert h.read(changed, 3) == b"old"
    directory = h.open(c.path(away, "d"), os.O_RDONLY)

    def change(i):
        c.write(i, "d/changed", "new changed")
        c.unlink(i, "d/gone")

    here = cut_and_fill(c, away, change)
    assert h.read(changed, 100) == b" changed"  # one run of reads, one revision
    assert h.pread(changed, 100, 0) == b"new changed"
    assert h.pread(gone, 100, 0) == b"old gone"
    assert h.fstat(gone).st_nlink == 0
    h.pwrite(gone, b"OLD", 0)
    assert h.pread(gone, 100, 0) == b"OLD gone"
    h.pwrite(kept, b"new", 0)
    assert c.read(here[0], "d/kept") == b"new kept"
    assert sorted(h.listdir(directory)) == ["changed", "gone", "kept"]  # as it was opened
    assert sorted(h.listdir(directory)) == ["changed", "kept"]
    for descriptor in (kept, changed, gone, directory):
        h.close(descriptor)


@pytest.mark.parametrize("moment", ["receiving", "building", "swapped"])
def test_a_node_that_is_killed_while_it_installs_a_snapshot_comes_back(make_cluster, moment):
    c = make_cluster(flags=FLAGS)
    away = followed(c, 1)
    here = [i for i in c.nodes() if i != away]
    fill(c, here[0], "first", 60)
    hits = 0
    for attempt in range(12):
        last = int(c.status(away)["last_index"])
        c.kill(away)
        fill(c, here[0], f"d{attempt}", 20)
        let_go(c, last)
        hits += kill_at(c, away, moment)
        c.start(away)
        wait_for(lambda: c.status(away)["stale"] == "no")
        hashes_agree(c)
        if hits == 3:
            break
    assert hits > 0, f"in twelve attempts it was never {moment}"
    assert tree(c, away) == tree(c, here[0])


def kill_at(c, i, moment):
    """Starts the node and kills it in this moment; whether it came to that."""
    def starts():
        return c.log(i).count(": recovered: ")  # before that there may be what the last run has left

    before = starts()
    starting = threading.Thread(target=lambda: c.tool("start", i, check=False))
    starting.start()
    try:
        wait_for(lambda: starts() > before, pause=0.001)
        wait_for(lambda: is_at(c, i, moment) or installed(c, i), 30, pause=0.0001)
        os.kill(c.pid(i), signal.SIGKILL)
    finally:
        starting.join()
    return not installed(c, i) if moment == "receiving" else is_at(c, i, moment)


def installed(c, i):
    return "a snapshot has been installed" in last_run(c, i)


def last_run(c, i):
    """What the node has logged since its last start."""
    return c.log(i).rpartition(": recovered: ")[2]


def is_at(c, i, moment):
    data = os.path.join(c.dir, f"n{i}", "data")
    building = os.path.exists(os.path.join(data, "store.new"))
    named = os.path.exists(os.path.join(data, "install"))
    if moment == "receiving":
        return ": connected to " in last_run(c, i) and c.status(i, timeout=2)["receiving_snapshot"] == "yes"
    if moment == "building":
        return building and not named
    return named and os.path.exists(os.path.join(data, "store", "installed"))
