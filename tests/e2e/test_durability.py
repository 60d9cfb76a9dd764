"""Nothing that write(2) acknowledged is ever lost or done twice, whatever is killed; and a restart brings back the same state."""

import hashlib
import os
import random
import signal
import time

import pytest

from keel import bounded, wait_for
from load import Load

MIXED = ["append"] * 6 + ["pwrite"] * 3


def kill_now(c, *nodes):
    """SIGKILL, all in the same moment."""
    pids = [c.pid(i) for i in nodes]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: all(not _runs(pid) for pid in pids), 10, "killed nodes end")


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def same_hash_everywhere(c):
    """Waits until all nodes have applied the same index, and compares the hashes of their states there."""

    def hashes():
        found = {c.status(i)["hash"] for i in c.nodes()}
        return found if len({h.split(" at ")[1] for h in found}) == 1 else None

    found = wait_for(hashes, 20, "all nodes at one index")
    assert len(found) == 1, f"states differ: {found}"


@pytest.mark.sanitizer
def test_kills_of_the_leader_under_load_lose_nothing_acknowledged(make_cluster):
    c = make_cluster()
    with Load(c, MIXED) as load:
        load.wait_for_progress()
        for _ in range(3):
            leader = c.leader()
            kill_now(c, leader)
            survivors = [w for w in load.kinds if load.node[w] != leader]
            load.wait_for_progress(30, writers=survivors)
            c.start(leader)
            load.wait_for_progress(30)
    assert load.check() > 500
    same_hash_everywhere(c)


def test_writers_elsewhere_see_no_error_when_a_follower_is_killed(make_cluster):
    c = make_cluster()
    victim = c.followers()[0]
    others = [i for i in c.nodes() if i != victim]
    with Load(c, ["append"] * 4 + ["pwrite"] * 2, nodes=others) as load:
        for _ in range(2):
            load.wait_for_progress(20)
            kill_now(c, victim)
            load.wait_for_progress(50)
            c.start(victim)
    assert load.errors() == set()
    load.check()
    same_hash_everywhere(c)


def test_a_kill_of_all_nodes_at_once_loses_nothing_acknowledged(make_cluster):
    c = make_cluster()
    with Load(c, MIXED) as load:
        for _ in range(3):
            load.wait_for_progress(40)
            kill_now(c, *c.nodes())
            c.up()
    assert load.check() > 500
    same_hash_everywhere(c)


def test_kills_at_random_points_lose_nothing_acknowledged(make_cluster):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    c = make_cluster()
    kills = 0
    with Load(c, MIXED) as load:
        end = time.monotonic() + 15
        while time.monotonic() < end:
            victims = dice.sample(list(c.nodes()), dice.choice([1, 1, 1, 2, 3]))
            kill_now(c, *victims)
            kills += len(victims)
            time.sleep(dice.uniform(0, 0.5))
            c.up()
            time.sleep(dice.uniform(0, 0.5))
        load.wait_for_progress(5)
    assert kills > 3
    load.check()
    same_hash_everywhere(c)


def test_partitions_under_load_lose_nothing_acknowledged_and_do_nothing_twice(make_cluster):
    """Writes behind the cut end in ETIMEDOUT; those that were on their way may be done, once."""
    c = make_cluster(flags=["--request-timeout", "1000"])
    with Load(c, MIXED) as load:
        for _ in range(2):
            load.wait_for_progress(20)
            leader = c.leader()
            c.cut(leader)
            load.wait_for_progress(20, writers=[w for w in load.kinds if load.node[w] != leader])
            behind = [w for w in load.kinds if load.node[w] == leader]
            goal = {w: timeouts(load, w) + 2 for w in behind}
            wait_for(lambda: all(timeouts(load, w) >= goal[w] for w in behind), 20, "writers behind the cut are answered")
            c.heal(leader)
            load.wait_for_progress(20)
    load.check()
    same_hash_everywhere(c)


def timeouts(load, writer):
    """How often this writer was told ETIMEDOUT, by write or by open."""
    fate, opens = load.notes(writer)
    return [*fate.values(), *opens].count("ETIMEDOUT")


def test_signals_to_writers_do_nothing_twice(make_cluster):
    """Also while there is no leader, when every write is interrupted again and again."""
    c = make_cluster()
    with Load(c, ["append"] * 3 + ["pwrite"] * 3) as load:
        load.wait_for_progress(5)
        for n in range(400):
            if n in (100, 250):
                leader = c.leader()
                kill_now(c, leader)
            if n in (180, 330):
                c.start(leader)
            for process in load.processes.values():
                process.send_signal(signal.SIGUSR1)
            time.sleep(0.01)
        load.wait_for_progress(20)
    load.check()


@pytest.mark.parametrize("sign", ["KILL", "TERM"])
def test_appends_on_a_follower_are_done_exactly_once_over_changes_of_the_leader(make_cluster, sign):
    """No error is seen there: the node itself sends again what may have been lost."""
    c = make_cluster()
    for _ in range(3):
        leader = c.leader()
        follower = next(i for i in c.nodes() if i != leader)
        with Load(c, ["append"] * 3, nodes=[follower]) as load:
            load.wait_for_progress(30)
            c.kill(leader, sign)
            load.wait_for_progress(30)
        assert load.errors() == set()
        for writer in load.kinds:
            assert set(load.notes(writer)[0].values()) == {"ok"}
        c.start(leader)
        load.check()
        c.run("rm -r load", follower)
    same_hash_everywhere(c)


def everything(c, i):
    """All that a restart must bring back, as one node shows it: names, attributes, content, history."""
    root = c.mnt(i)

    def walk():
        found = {}
        for directory, names, files in os.walk(root):
            for name in [*names, *files]:
                path = os.path.join(directory, name)
                st = os.lstat(path)
                key = os.path.relpath(path, root)
                content = None
                if os.path.islink(path):
                    content = os.readlink(path)
                elif name in files:
                    with open(path, "rb") as file:
                        content = hashlib.sha256(file.read()).hexdigest()
                    with open(path + "@log") as file:
                        content += file.read()
                xattrs = None if os.path.islink(path) else [
                    os.getxattr(path, f"user.keel.{x}")
                    for x in ("revision", "create_revision", "version")]
                found[key] = (
                    st.st_ino, st.st_mode, st.st_nlink, st.st_uid, st.st_gid, st.st_size,
                    st.st_atime_ns, st.st_mtime_ns, st.st_ctime_ns, xattrs, content)
        return found

    return bounded(walk, 60)


def make_a_bit_of_everything(c):
    c.run(
        """
        mkdir -p d/e/f many && echo 1 > d/a && echo 2 > d/a && chmod 640 d/a && chown 12:34 d/a
        echo x > d/e/gone && rm d/e/gone && echo back > d/e/gone
        ln -s ../a d/e/link && touch -d '2001-02-03 04:05:06.789' d/a
        head -c 300000 /dev/urandom > d/e/f/big && cp d/e/f/big d/copy && echo more >> d/copy
        echo t > d/t && mv d/t d/moved && echo u > d/u && mv d/u d/moved
        for n in $(seq 150); do echo "$n" > "many/$n"; done
        rm many/1* && mkdir d/empty && : > d/zero
        """, 1, timeout=60)


def test_a_restart_brings_back_the_same_state_and_history(make_cluster):
    c = make_cluster()
    make_a_bit_of_everything(c)
    old_revision = c.revision(1, "many/99")
    before = everything(c, 1)
    past = c.run(f"cd @rev={old_revision} && find . -type f | sort | xargs sha256sum", 1).stdout
    assert len(before) > 50 and len(past.splitlines()) > 50
    for i in c.nodes():
        assert everything(c, i) == before, f"n{i} before the restart"
    revision = c.status(1)["revision"]
    for sign in ["TERM", "KILL"]:
        for i in c.nodes():
            c.kill(i, sign)
        c.up()
        for i in c.nodes():
            assert everything(c, i) == before, f"n{i} after {sign}"
            assert c.status(i)["revision"] == revision
        again = c.run(f"cd @rev={old_revision} && find . -type f | sort | xargs sha256sum", 2).stdout
        assert again == past
        same_hash_everywhere(c)
    c.write(3, "new", "after")
    assert c.revision(1, "new") == int(revision) + 1
    inodes = {value[0] for value in before.values()}
    assert c.stat(2, "new").st_ino not in inodes


def test_a_node_that_was_down_for_thousands_of_writes_replays_them_right(make_cluster):
    """20,000 small writes; one node sees only a part of them at first hand, and all are killed at the end."""
    c = make_cluster()
    late = c.followers()[0]
    others = [i for i in c.nodes() if i != late]

    def some_writes(i, first, writers=8, each=625):
        """Appends in parallel: 5,000 lines of 16 bytes."""
        path = c.path(i, "many")

        def work():
            children = []
            for w in range(writers):
                pid = os.fork()
                if pid == 0:
                    code = 1
                    try:
                        descriptor = os.open(f"{path}-{w}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
                        for n in range(each):
                            assert os.write(descriptor, b"%02d %011d\n" % (w, first + n)) == 15
                        code = 0
                    finally:
                        os._exit(code)
                children.append(pid)
            return [os.waitpid(pid, 0)[1] for pid in children]

        assert bounded(work, 60) == [0] * writers

    some_writes(late, 0)
    kill_now(c, late)
    some_writes(others[0], 625)
    some_writes(others[1], 1250)
    c.start(late)
    some_writes(late, 1875)
    revision = c.status(late)["revision"]
    kill_now(c, *c.nodes())
    c.up()
    expected = {w: b"".join(b"%02d %011d\n" % (w, n) for n in range(2500)) for w in range(8)}
    for i in c.nodes():
        for w in range(8):
            assert c.read(i, f"many-{w}") == expected[w], (i, w)
            assert c.xattr(i, f"many-{w}", "user.keel.version") == "2500"
        assert c.status(i)["revision"] == revision
    same_hash_everywhere(c)


def test_a_lone_node_that_is_killed_again_and_again_keeps_everything(make_cluster):
    c = make_cluster(nodes=1)
    with Load(c, ["append"] * 4 + ["pwrite"]) as load:
        for _ in range(5):
            load.wait_for_progress(20)
            kill_now(c, 1)
            c.start(1)
        load.wait_for_progress(5)
    load.check()
