"""keelctl snapshot: a backup file out of a node that is stopped, what is in it, and a new cluster out of it."""

import json
import os
import pty
import re
import shutil
import subprocess

import pytest

import keel
from keel import run, wait_for

TOOLS = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(keel.BINARY))), "tools")
KEELCTL = os.path.join(TOOLS, "keelctl")
FIELDS = ["cluster_id", "revision", "compact_revision", "index", "term", "hash", "keys", "revisions_kept", "directories",
          "bytes"]


def keelctl(*arguments, code=0, **options):
    result = run([KEELCTL, *map(str, arguments)], check=False, **options)
    assert result.returncode == code, f"{result.returncode}\n{result.stdout}{result.stderr}"
    return result


def data_dir(c, i=1):
    return os.path.join(c.dir, f"n{i}", "data")


def settings_of(c):
    """What tools/cluster keeps of its cluster: count, port, token, founders."""
    with open(os.path.join(c.dir, "cluster")) as file:
        return file.read().split()


def members_of(c):
    _, port, _, founders = settings_of(c)
    return ",".join(f"n{i}=127.0.1.{i}:{port}" for i in range(1, int(founders) + 1))


def stop_all(c):
    for i in c.nodes():
        c.kill(i, "TERM")


def restore_all(c, file, token, *more):
    """New data directories for all nodes of a cluster that is stopped, and its token."""
    count, port, _, founders = settings_of(c)
    for i in c.nodes():
        shutil.rmtree(data_dir(c, i))
        keelctl("snapshot", "restore", file, "--data-dir", data_dir(c, i), "--name", f"n{i}", "--initial-cluster",
                members_of(c), "--cluster-token", token, *more)
    with open(os.path.join(c.dir, "cluster"), "w") as out:
        print(count, port, token, founders, file=out)


def status_of(file):
    lines = keelctl("snapshot", "status", file).stdout.splitlines()
    fields = dict(line.split(": ") for line in lines)
    assert list(fields) == FIELDS
    return fields


def tree(c, i):
    """Names, kinds, modes, times and contents of all that is in conf."""
    return c.run(r"find conf -printf '%p %y %m %s %l %T@\n' | sort; find conf -type f | sort | xargs md5sum", i).stdout


@pytest.fixture(scope="module")
def backup(tmp_path_factory):
    """A snapshot file, and what the node said whose it is."""
    directory = tmp_path_factory.mktemp("backup")
    c = keel.Cluster(1).up()
    try:
        c.mkdir(1, "d")
        for i in range(20):
            c.write(1, f"d/f{i}", f"content {i}")
        c.unlink(1, "d/f3")
        c.run("ln -s f1 d/link", 1)
        c.write(1, "d/f1", "again")
        said = wait_for(lambda: settled(c), 20)
        stop_all(c)
        keelctl("snapshot", "save", directory / "file", "--data-dir", data_dir(c))
        yield directory / "file", said
    finally:
        c.close()


def settled(c):
    """The status of a node that has applied everything."""
    status = c.status(1)
    return status if status["applied_index"] == status["commit_index"] else None


def test_the_store_of_a_node_that_was_stopped_has_all_of_it(make_cluster, tmp_path):
    c = make_cluster(1)
    for i in range(5):
        c.write(1, "last", f"written {i}")
        c.kill(1, "TERM")
        keelctl("snapshot", "save", tmp_path / f"{i}", "--data-dir", data_dir(c))
        log = c.log(1)
        c.start(1)
        recovered = c.log(1)[len(log):]
        applied, end = map(int, re.search(r"recovered: applied (\d+), log (\d+)", recovered).groups())
        assert applied == end
        assert b"written %d" % i in open(tmp_path / f"{i}", "rb").read()


# ---- what is in a file ----

def test_status_says_what_the_node_said(backup):
    file, said = backup
    fields = status_of(file)
    for name in ["cluster_id", "revision", "compact_revision"]:
        assert fields[name] == said[name]
    assert fields["hash"] == said["hash"].split(" at ")[0]
    assert fields["index"] == said["applied_index"]
    assert fields["keys"] == "22"  # the root, d, 19 files and a link
    assert fields["directories"] == "2"
    assert int(fields["revisions_kept"]) == int(fields["revision"])
    assert int(fields["bytes"]) == os.path.getsize(file)


def test_status_as_json_is_the_same(backup):
    file, _ = backup
    answer = json.loads(keelctl("--json", "snapshot", "status", file).stdout)
    assert list(answer) == FIELDS
    assert {name: str(value) for name, value in answer.items()} == status_of(file)
    assert isinstance(answer["keys"], int) and isinstance(answer["hash"], str)


def test_a_damaged_file_is_told_by_status_and_refused_by_restore(backup, tmp_path):
    data = bytearray(backup[0].read_bytes())
    damaged = tmp_path / "damaged"
    for at in [0, 30, len(data) // 2, len(data) - 1]:
        data[at] ^= 4
        damaged.write_bytes(data)
        data[at] ^= 4
        assert "the snapshot is damaged: block" in keelctl("snapshot", "status", damaged, code=1).stderr
        assert "the snapshot is damaged: block" in restore(damaged, tmp_path / "data", code=1).stderr
        assert not (tmp_path / "data").exists()
    damaged.write_bytes(data[:-1])
    assert "ends" in keelctl("snapshot", "status", damaged, code=1).stderr


def restore(file, directory, *more, code=0, name="a", members="a=127.0.0.1:7400"):
    return keelctl("snapshot", "restore", file, "--data-dir", directory, "--name", name, "--initial-cluster", members,
                   *more, code=code)


# ---- save ----

def test_a_file_is_private_and_replaces_the_one_before_at_once(backup):
    file, _ = backup
    assert os.stat(file).st_mode & 0o777 == 0o600
    assert not os.path.exists(f"{file}.tmp")


@pytest.mark.cluster(nodes=1)
def test_a_node_that_runs_is_not_saved_from_behind(cluster, tmp_path):
    answer = keelctl("snapshot", "save", tmp_path / "file", "--data-dir", data_dir(cluster), code=1)
    assert "a node is running with it: save through its mount" in answer.stderr
    assert os.listdir(tmp_path) == []


def test_a_directory_without_a_node_is_not_saved(tmp_path):
    (tmp_path / "empty").mkdir()
    answer = keelctl("snapshot", "save", tmp_path / "file", "--data-dir", tmp_path / "empty", code=1)
    assert "that of no node" in answer.stderr
    assert os.listdir(tmp_path) == ["empty"]


def test_a_directory_that_is_no_mount_is_not_saved(tmp_path):
    answer = keelctl("--mount", tmp_path, "snapshot", "save", tmp_path / "file", code=1)
    assert "not the mount point of a running keelfs node" in answer.stderr
    assert os.listdir(tmp_path) == []


@pytest.fixture
def stand_in(tmp_path):
    """A directory that has what a mount has for save, with a content of our own."""

    def make(content):
        (tmp_path / "mnt" / "@keel").mkdir(parents=True, exist_ok=True)
        (tmp_path / "mnt" / "@keel" / "snapshot").write_bytes(content)
        return tmp_path / "mnt"

    return make


def test_what_a_node_gives_is_checked_before_it_gets_its_name(backup, stand_in, tmp_path):
    good = backup[0].read_bytes()
    out = tmp_path / "file"
    out.write_text("the one of yesterday")
    for bad in [good[:-1], good[:200], b"", good[:300] + bytes([good[300] ^ 1]) + good[301:], good + b"x"]:
        assert "the snapshot is damaged" in keelctl("--mount", stand_in(bad), "snapshot", "save", out, code=1).stderr
        assert out.read_text() == "the one of yesterday" and not os.path.exists(f"{out}.tmp")
    said = keelctl("--mount", stand_in(good), "snapshot", "save", out).stdout
    assert f"revision {backup[1]['revision']}, as of entry {backup[1]['applied_index']}, {len(good)} bytes" in said
    assert out.read_bytes() == good and os.stat(out).st_mode & 0o777 == 0o600


def test_a_terminal_sees_how_far_it_is_and_nobody_else(backup, stand_in, tmp_path):
    mount = stand_in(backup[0].read_bytes())
    ours, theirs = pty.openpty()
    process = subprocess.Popen([KEELCTL, "--mount", mount, "snapshot", "save", tmp_path / "file"],
                               stdout=subprocess.DEVNULL, stderr=theirs)
    assert process.wait(20) == 0
    os.close(theirs)
    seen = os.read(ours, 4096).decode()
    os.close(ours)
    assert re.search(r"\[#{40}\] 100%", seen)
    assert keelctl("--mount", mount, "snapshot", "save", tmp_path / "file").stderr == ""


def test_a_place_that_cannot_be_written_is_told(backup, stand_in, tmp_path):
    mount = stand_in(backup[0].read_bytes())
    answer = keelctl("--mount", mount, "snapshot", "save", tmp_path / "no" / "file", code=1)
    assert "no/file.tmp: No such file or directory" in answer.stderr
    assert not os.path.exists(tmp_path / "no")


# ---- restore ----

def test_a_directory_that_is_not_empty_is_left_alone(backup, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "precious").write_text("x")
    answer = restore(backup[0], tmp_path / "data", code=1)
    assert "is not empty (precious is in it)" in answer.stderr
    assert os.listdir(tmp_path / "data") == ["precious"]


@pytest.mark.parametrize("arguments, words", [
    (["snapshot"], "usage: keelctl snapshot"),
    (["snapshot", "status"], "usage: keelctl snapshot"),
    (["snapshot", "mend", "f"], "usage: keelctl snapshot save"),
    (["snapshot", "status", "f", "--name", "n"], "usage: keelctl snapshot save"),
    (["snapshot", "save", "f", "--data-dir", "d", "--name", "n"], "usage: keelctl snapshot save"),
    (["snapshot", "restore", "f", "--data-dir", "d"], "usage: keelctl snapshot save"),
    (["snapshot", "restore", "f", "--bump-revision", "x"], "--bump-revision takes a number, not 'x'"),
    (["status", "--data-dir", "d"], "usage: keelctl status"),
    (["snapshot", "restore", "f", "--data-dir", "d", "--name", "n", "--initial-cluster", "m=h:1"],
     "does not name this node (n)"),
])
def test_wrong_usage_says_what_is_right(tmp_path, arguments, words):
    assert words in keelctl(*arguments, code=2, cwd=tmp_path).stderr
    assert os.listdir(tmp_path) == []


def test_the_help_tells_of_snapshots():
    text = keelctl("--help").stdout
    for word in ["snapshot", "save", "restore", "--bump-revision", "--initial-cluster"]:
        assert word in text


@pytest.mark.sanitizer
def test_a_restored_cluster_has_all_that_was_saved_and_goes_on(make_cluster, tmp_path):
    c = make_cluster()
    c.run("mkdir -p conf/deep; echo one > conf/a; echo two > conf/a; ln -s a conf/l; chmod 640 conf/a; head -c 300000 "
          "/dev/urandom > conf/deep/big; echo x > gone; rm gone", 1)
    c.write(1, "session@ttl=10", "held")
    before = tree(c, 1)
    revision = int(c.status(1)["revision"])
    old_cluster = c.status(1)["cluster_id"]
    history = c.read(1, "conf/a@log")
    stop_all(c)
    file = tmp_path / "file"
    keelctl("snapshot", "save", file, "--data-dir", data_dir(c, 2))
    saved = status_of(file)
    assert int(saved["revision"]) >= revision

    restore_all(c, file, "second", "--bump-revision", 5000)
    for i in c.nodes():
        c.start(i)
    wait_for(lambda: c.leader(), 20)
    assert tree(c, 3) == before
    status = c.status(3)
    assert status["cluster_id"] != old_cluster
    assert set(c.members(1)) == {"n1", "n2", "n3"} and c.voters(1) == ["n1", "n2", "n3"]
    assert c.read(2, "conf/a@log") == history
    assert c.read(3, f"conf/a@rev={revision + 2500}") == b"two\n"

    # Nobody holds the lease any more.
    wait_for(lambda: not c.exists(1, "session"), 30, "the file goes with its lease")
    c.write(2, "conf/new", "after")
    assert c.revision(1, "conf/new") > revision + 5000
    wait_for(lambda: len({c.status(i)["hash"] for i in c.nodes()}) == 1, 20, "one state everywhere")
    for i in c.nodes():
        c.kill(i)
    for i in c.nodes():
        c.start(i)
    assert c.read(3, "conf/new") == b"after" and c.read(3, "conf/a") == b"two\n"


def test_restored_to_the_hash_that_was_saved(make_cluster, backup, tmp_path):
    c = make_cluster(1)
    c.kill(1, "TERM")
    restore_all(c, backup[0], "second")
    c.start(1)
    wait_for(lambda: c.leader() == 1, 20)
    assert c.status(1)["hash"].split(" at ")[0] == status_of(backup[0])["hash"]
    assert c.status(1)["revision"] == status_of(backup[0])["revision"]
    assert c.read(1, "d/link") == b"again" and not c.exists(1, "d/f3")


def test_a_member_of_the_old_cluster_is_not_let_into_the_new_one(make_cluster, tmp_path):
    c = make_cluster()
    c.write(1, "f", "x")
    stop_all(c)
    file, kept = tmp_path / "file", os.path.join(c.dir, "kept")
    keelctl("snapshot", "save", file, "--data-dir", data_dir(c))
    members, token = members_of(c), settings_of(c)[2]
    answer = restore(file, tmp_path / "data", "--cluster-token", token, members=members, name="n1", code=2)
    assert "another --cluster-token" in answer.stderr and not (tmp_path / "data").exists()

    shutil.copytree(data_dir(c, 3), kept)
    restore_all(c, file, "second")
    shutil.rmtree(data_dir(c, 3))
    os.rename(kept, data_dir(c, 3))
    assert c.tool("start", 3, check=False).returncode != 0
    assert re.search("belongs to the cluster '.*', not to 'second'", c.log(3))
    for i in (1, 2):
        c.start(i)
    wait_for(lambda: c.status(1)["quorum"] == "yes", 20)
    assert c.read(2, "f") == b"x"
