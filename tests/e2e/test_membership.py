"""Members come, are promoted, lead, and go, while the files are in use."""

import errno
import os
import subprocess
import tempfile

import pytest

from hands import as_user, in_parallel
from keel import BINARY, KEELCTL, bounded, run, wait_for


WRITES = """
n=0
until [ -e "$2/stop" ]; do
    echo $n > "$1/$n" || exit 1
    n=$((n + 1))
    echo $n > "$2/new" && mv "$2/new" "$2/count"
done
"""


class Writer:
    """Writes file after file through one mount, until it is told to stop, or a write fails."""

    def __init__(self, cluster, i, directory):
        self.i = i
        self.notes = tempfile.mkdtemp(dir=cluster.dir)
        cluster.mkdir(i, directory)
        with open(os.path.join(self.notes, "errors"), "w") as errors:
            self.process = subprocess.Popen(["bash", "-c", WRITES, "writer", cluster.path(i, directory), self.notes],
                                            stdin=subprocess.DEVNULL, stderr=errors)

    def _note(self, name):
        try:
            with open(os.path.join(self.notes, name)) as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def count(self):
        return int(self._note("count") or 0)

    def more(self, count):
        """Waits for so many writes more."""
        goal = self.count() + count
        wait_for(lambda: self.process.poll() is not None or self.count() >= goal, 60, "writes that go on")
        assert self.process.poll() is None, self._note("errors")

    def stop(self):
        """How many there were."""
        with open(os.path.join(self.notes, "stop"), "w"):
            pass
        assert self.process.wait(30) == 0, self._note("errors")
        return self.count()


def change(c, i, text):
    """One write to @keel/members; the errno, 0 for none."""
    return c.call(i, lambda path: result_of_change(path, text), "@keel/members", timeout=20)


def result_of_change(path, text):
    try:
        write_once(path, text)
    except OSError as error:
        return error.errno
    return 0


def write_once(path, text):
    descriptor = os.open(path, os.O_WRONLY)
    try:
        assert os.write(descriptor, text.encode()) == len(text)
    finally:
        os.close(descriptor)


def same_everywhere(c, name, data):
    for i in c.nodes():
        wait_for(lambda i=i: c.read(i, name) == data, what=f"{name} on n{i}")


def settled(c, names):
    """Every node knows just these voters, and no change is under way."""
    for i in c.nodes():
        wait_for(lambda i=i: c.voters(i) == sorted(names) and c.status(i)["joint"] == "no",
                 what=f"voters {names} on n{i}; there {c.voters(i)}")


# ---- coming ----

@pytest.mark.sanitizer
def test_a_new_node_learns_everything_and_is_promoted(cluster):
    c = cluster
    c.write(1, "before", "1")
    c.add(4)
    assert c.read(4, "before") == b"1"
    assert c.status(4)["role"] == "learner"
    for i in c.nodes():
        wait_for(lambda i=i: c.members(i).get("n4", {}).get("voter") == "no")
    c.write(4, "by-a-learner", "2")
    same_everywhere(c, "by-a-learner", b"2")
    c.keelctl(2, "members", "promote", "n4", "--wait", timeout=30)
    settled(c, ["n1", "n2", "n3", "n4"])
    assert c.status(4)["role"] == "follower"
    for i in c.nodes():
        wait_for(lambda i=i: int(c.members(i)["n4"]["incarnation"].replace("-", "0"), 16) != 0)
    # three of four are a majority, and n4 is needed for it
    c.kill(1 if c.leader() != 1 else 2)
    c.write(4, "f", "three of four")


def test_a_learner_does_not_count(cluster):
    c = cluster
    c.add(4)
    c.kill(4)
    c.write(1, "f", "1")
    dead = c.followers()
    dead = [i for i in dead if i != 4][0]
    c.kill(dead)
    living = [i for i in (1, 2, 3) if i != dead]
    c.write(living[0], "f", "two of three voters")
    assert c.read(living[1], "f") == b"two of three voters"


def test_a_member_that_was_added_survives_restarts_without_join(cluster):
    c = cluster
    c.add(4)
    c.keelctl(1, "members", "promote", "n4", "--wait", timeout=30)
    settled(c, ["n1", "n2", "n3", "n4"])
    c.write(4, "f", "1")
    for i in c.nodes():
        c.kill(i, "TERM" if i % 2 else "KILL")
    os.unlink(os.path.join(c.dir, "n4", "join"))
    for i in c.nodes():
        c.tool("up")
    settled(c, ["n1", "n2", "n3", "n4"])
    same_everywhere(c, "f", b"1")


def test_a_node_that_nobody_added_is_refused_with_what_to_do(shared_cluster, tmp_path):
    c = shared_cluster
    result = join(c, "n9", tmp_path, 1)
    assert result.returncode == 1
    assert "n9 is not a member" in result.stderr and "keelctl members add n9 HOST:PORT" in result.stderr


def join(c, name, place, member, port=None):
    """Starts a node in the foreground that wants to join at a member of the cluster, with an empty directory."""
    with open(os.path.join(c.dir, "cluster")) as file:
        cluster_port = file.read().split()[1]
    os.makedirs(place / "mnt", exist_ok=True)
    return run([BINARY, "--name", name, "--data-dir", str(place / "data"), "--join",
                f"127.0.1.{member}:{port or cluster_port}", str(place / "mnt")], check=False, timeout=30)


def test_another_cluster_is_not_entered_by_mistake(shared_cluster, tmp_path):
    c = shared_cluster
    assert change(c, 1, "add n8 127.0.1.8:7999") == 0
    with open(os.path.join(c.dir, "cluster")) as file:
        port = file.read().split()[1]
    os.makedirs(tmp_path / "mnt")
    result = run([BINARY, "--name", "n8", "--data-dir", str(tmp_path / "data"), "--cluster-token", "other", "--join",
                  f"127.0.1.1:{port}", str(tmp_path / "mnt")], check=False)
    assert result.returncode == 2 and "not of 'other'" in result.stderr
    assert not os.path.exists(tmp_path / "data" / "identity")
    assert change(c, 1, "remove n8") == 0


def test_a_joining_node_waits_for_somebody_to_answer(tmp_path):
    os.makedirs(tmp_path / "mnt")
    result = run(["timeout", "3", BINARY, "--name", "n9", "--data-dir", str(tmp_path / "data"), "--join",
                  "127.0.1.1:1", str(tmp_path / "mnt")], check=False)
    assert result.returncode == 124
    assert result.stderr.count("trying again") == 1 and "--join 127.0.1.1:1" in result.stderr


# ---- a node that has lost its data ----

def test_a_wiped_node_is_refused_and_comes_back_as_a_new_one(cluster, tmp_path):
    c = cluster
    c.add(4)
    wait_for(lambda: all(int(c.members(i)["n4"]["incarnation"].replace("-", "0"), 16) for i in c.nodes()))
    c.kill(4)
    result = join(c, "n4", tmp_path, 1)
    assert result.returncode == 1
    assert "n4 has joined already with another data directory: remove it and add it again" in result.stderr
    c.remove(4)
    c.write(1, "f", "meanwhile")
    c.add(4)
    assert c.read(4, "f") == b"meanwhile"


# ---- going ----

def test_a_removed_node_answers_eio_and_says_why(cluster):
    c = cluster
    c.write(3, "f", "1")
    if c.leader() == 3:
        c.keelctl(3, "transfer", "n1")
    c.keelctl(1, "members", "remove", "n3")
    c.removed.add(3)
    settled(c, ["n1", "n2"])
    wait_for(lambda: "this node has been removed from the cluster" in c.log(3) or "not a member" in c.log(3))
    wait_for(lambda: c.status(3)["role"] == "removed")
    for attempt in [lambda: c.read(3, "f"), lambda: c.listdir(3), lambda: c.write(3, "g", "2"),
                    lambda: c.mkdir(3, "d"), lambda: c.stat(3, "f")]:
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == errno.EIO
    assert "role: removed" in c.keelctl(3, "status").stdout
    assert {"status", "members", "transfer"} <= set(c.listdir(3, "@keel"))
    run(["df", c.mnt(3)])
    assert change(c, 3, "remove n1") == errno.EIO
    c.write(1, "f", "goes on")
    assert c.read(2, "f") == b"goes on"
    c.kill(3, "TERM")
    assert c.tool("start", 3, check=False).returncode == 1
    assert "delete its data directory" in c.log(3).splitlines()[-1]


def test_a_node_that_was_down_when_it_was_removed_is_told_by_the_others(cluster):
    c = cluster
    gone = c.followers()[0]
    here = [i for i in c.nodes() if i != gone]
    c.kill(gone)
    c.keelctl(here[0], "members", "remove", f"n{gone}")
    c.removed.add(gone)
    settled(c, [f"n{i}" for i in here])
    c.tool("start", gone, check=False)  # it may have ended before its mount was seen
    wait_for(lambda: f"stopping: n{gone} has been removed from the cluster" in c.log(gone))
    wait_for(lambda: c.tool("start", gone, check=False).returncode == 1)
    assert "delete its data directory" in c.log(gone).splitlines()[-1]
    c.write(here[0], "f", "1")
    assert c.read(here[1], "f") == b"1"


def test_the_leader_is_removed_and_writes_go_on(cluster):
    c = cluster
    old = c.leader()
    others = [i for i in c.nodes() if i != old]
    writer = Writer(c, others[0], "w")
    writer.more(5)
    c.remove(old)
    writer.more(20)
    count = writer.stop()
    settled(c, [f"n{i}" for i in others])
    assert c.leader() in others
    assert len(c.listdir(others[1], "w")) == count


def test_a_node_is_replaced_by_another_at_once(cluster):
    c = cluster
    writer = Writer(c, 1, "w")
    c.add(4)
    wait_for(lambda: c.keelctl(1, "members", "apply", "promote n4", "remove n2", check=False).returncode == 0)
    c.kill(2, "TERM")
    c.removed.add(2)
    settled(c, ["n1", "n3", "n4"])
    writer.more(10)
    count = writer.stop()
    for i in c.nodes():
        assert len(c.listdir(i, "w")) == count


def test_from_three_to_five_and_back(cluster):
    c = cluster
    writer = Writer(c, 1, "w")
    for i in (4, 5):
        c.add(i)
        c.keelctl(1, "members", "promote", f"n{i}", "--wait", timeout=30)
    settled(c, ["n1", "n2", "n3", "n4", "n5"])
    for i in (2, 3):
        c.kill(i)
    writer.more(10)
    for i in (2, 3):
        c.start(i)
    for i in (5, 2):
        c.remove(i)
    settled(c, ["n1", "n3", "n4"])
    writer.more(10)
    count = writer.stop()
    for i in c.nodes():
        assert len(c.listdir(i, "w")) == count


# ---- what is refused ----

def test_changes_that_make_no_sense_are_refused_by_their_errno(shared_cluster):
    c = shared_cluster
    before = c.members(1).keys()
    with open(os.path.join(c.dir, "cluster")) as file:
        port = file.read().split()[1]
    for i in c.nodes():
        for text, expected in [
            ("", 0), ("nonsense", errno.EINVAL), ("add n4", errno.EINVAL), ("add n/4 127.0.1.4:7", errno.EINVAL),
            ("add n4 nowhere", errno.EINVAL), ("remove n4", errno.ENOENT), ("promote n4", errno.ENOENT),
            ("add n2 127.0.1.4:7", errno.EEXIST), (f"add n4 127.0.1.2:{port}", errno.EEXIST),
            ("remove n1\nremove n2\nremove n3", errno.EINVAL), ("add n4 127.0.1.4:7\nremove n9", errno.ENOENT),
        ]:
            if text:
                assert change(c, i, text) == expected, text
    assert c.members(1).keys() == before
    assert c.keelctl(1, "members", "add", "n2", "127.0.1.4:7", check=False).stderr.startswith(
        "keelctl: n2: a member has that name or address already")
    assert "there is no such member" in c.keelctl(2, "members", "remove", "n7", check=False).stderr
    assert "there is no such voter" in c.keelctl(2, "transfer", "n7", check=False).stderr


def test_of_changes_at_the_same_time_each_is_made_or_refused(shared_cluster):
    c = shared_cluster
    names = {i: f"t{i}" for i in c.nodes()}
    results = in_parallel([lambda i=i: result_of_change(c.path(i, "@keel/members"), f"add {names[i]} 127.0.1.{i}:799{i}")
                           for i in c.nodes()])
    assert set(results) <= {0, errno.EBUSY} and 0 in results
    made = {names[i] for i, result in zip(c.nodes(), results) if result == 0}
    for i in c.nodes():
        wait_for(lambda i=i: c.members(i).keys() == {"n1", "n2", "n3"} | made)
    for name in made:
        assert change(c, 1, f"remove {name}") == 0


def test_a_learner_that_has_never_been_there_is_not_promoted(shared_cluster):
    c = shared_cluster
    assert change(c, 1, "add n7 127.0.1.7:7999") == 0
    for i in c.nodes():
        wait_for(lambda i=i: "n7" in c.members(i))
        result = c.keelctl(i, "members", "promote", "n7", check=False)
        assert result.returncode == 3 and "n7 has not caught up yet" in result.stderr
        assert c.keelctl(i, "transfer", "n7", check=False).returncode == 1
    assert c.voters(1) == ["n1", "n2", "n3"]
    assert change(c, 2, "remove n7") == 0


def test_the_last_voter_stays(shared_node):
    c = shared_node
    assert change(c, 1, "remove n1") == errno.EINVAL
    c.write(1, "f", "1")


@pytest.mark.parametrize("uid", [1000, 65534])
def test_only_root_changes_members(shared_cluster, uid):
    c = shared_cluster
    assert b"name=n1" in bounded(lambda: as_user(uid, lambda path: open(path, "rb").read(), c.path(1, "@keel/members")))
    for name, text in [("members", "remove n1"), ("transfer", "n2")]:
        with pytest.raises(OSError) as caught:
            bounded(lambda name=name, text=text: as_user(uid, write_once, c.path(1, f"@keel/{name}"), text))
        assert caught.value.errno == errno.EACCES
        with pytest.raises(OSError) as caught:
            bounded(lambda name=name: as_user(uid, os.chmod, c.path(1, f"@keel/{name}"), 0o666))
        assert caught.value.errno in (errno.EPERM, errno.EACCES)
    result = run(["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", KEELCTL, "--mount", c.mnt(1), "members",
                  "remove", "n1"], check=False)
    assert result.returncode == 1 and "only root may do that" in result.stderr
    assert c.voters(1) == ["n1", "n2", "n3"]


def test_without_a_quorum_a_change_is_not_confirmed(make_cluster):
    c = make_cluster(flags=["--request-timeout", "1500"])
    leader = c.leader()
    for i in c.followers():
        c.kill(i)
    # a leader that has noticed begins nothing; one that has not waits in vain
    assert change(c, leader, "add n4 127.0.1.4:7999") in (errno.EAGAIN, errno.ETIMEDOUT)
    wait_for(lambda: c.status(leader)["quorum"].startswith("no"))
    assert change(c, leader, "add n5 127.0.1.5:7999") in (errno.EAGAIN, errno.ETIMEDOUT)
    for i in c.nodes():
        if i != leader:
            c.start(i)
    for name in ("n4", "n5"):
        wait_for(lambda name=name: change(c, leader, f"remove {name}") in (0, errno.ENOENT))
    settled(c, ["n1", "n2", "n3"])


def test_a_change_that_waits_ends_at_a_signal(make_cluster):
    c = make_cluster(flags=["--request-timeout", "60000"])
    leader = c.leader()
    for i in c.followers():
        c.kill(i)
    wait_for(lambda: c.status(leader)["leader"] == "none")
    result = c.run("timeout --signal=INT 1 sh -c 'echo add n4 127.0.1.4:7999 > @keel/members'", leader, check=False,
                   timeout=15)
    assert result.returncode == 124
    result = c.run("timeout --signal=INT 1 sh -c 'echo > @keel/transfer'", leader, check=False, timeout=15)
    assert result.returncode == 124
    for i in c.nodes():
        if i != leader:
            c.start(i)
    assert change(c, leader, "add n5 127.0.1.5:7999") == 0
    assert "n4" not in c.members(leader)


# ---- leading ----

@pytest.mark.sanitizer
def test_leadership_goes_where_it_is_told(cluster):
    c = cluster
    writer = Writer(c, 1, "w")
    for to in (2, 3, 1):
        for asked in c.nodes():
            c.keelctl(asked, "transfer", f"n{to}")
            assert c.leader() == to
    writer.more(5)
    old = c.leader()
    c.keelctl(2, "transfer")
    assert c.leader() != old
    writer.stop()


def test_a_clean_stop_of_the_leader_hands_over(cluster):
    c = cluster
    writer = Writer(c, c.followers()[0], "w")
    for _ in range(3):
        leader = c.leader()
        if leader == writer.i:
            c.keelctl(leader, "transfer")
            leader = c.leader()
        term = int(c.status(writer.i)["term"])
        writer.more(3)
        c.kill(leader, "TERM")
        writer.more(3)
        assert c.leader() != leader
        assert int(c.status(writer.i)["term"]) == term + 1  # one election, and nobody contested it
        c.start(leader)
    writer.stop()
