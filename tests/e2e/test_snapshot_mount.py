"""/@keel/snapshot: a backup of a running node, read like a file, and keelctl snapshot save on top of it."""

import errno
import os
import shutil
import signal

import pytest

from keel import run, wait_for
from test_snapshot_file import restore_all, status_of, tree

SNAPSHOT = "@keel/snapshot"


def fill(c, i, directory, files=20, size=200_000):
    c.mkdir(i, directory)
    for n in range(files):
        c.write(i, f"{directory}/{n}", os.urandom(size))


def refused(code, function, *arguments):
    with pytest.raises(OSError) as caught:
        function(*arguments)
    assert caught.value.errno == code, caught.value


def read_all(hand, fd, size=131072):
    parts = []
    while part := hand.read(fd, size):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.sanitizer
def test_a_running_cluster_is_saved_and_restored_as_another(make_cluster, tmp_path):
    c = make_cluster()
    c.run("mkdir -p conf/deep; echo one > conf/a; echo two > conf/a; ln -s a conf/l; chmod 640 conf/a; head -c 300000 "
          "/dev/urandom > conf/deep/big; echo x > gone; rm gone", 1)
    before, history, revision = tree(c, 1), c.read(1, "conf/a@log"), int(c.status(1)["revision"])
    old_cluster = c.status(1)["cluster_id"]
    file = tmp_path / "file"
    said = c.keelctl(2, "snapshot", "save", file).stdout
    assert f"revision {revision}," in said
    assert status_of(file)["revision"] == str(revision)
    assert (tmp_path / "file").stat().st_mode & 0o7777 == 0o600

    c.run("echo three > conf/a; rm -r conf/deep", 3)  # is not in it
    for i in c.nodes():
        c.kill(i, "TERM")
    restore_all(c, file, "second")
    for i in c.nodes():
        c.start(i)
    wait_for(lambda: c.leader(), 20)
    for i in c.nodes():
        assert tree(c, i) == before
    assert c.status(3)["cluster_id"] != old_cluster
    assert c.read(2, "conf/a@log") == history
    assert c.read(3, f"conf/a@rev={revision}") == b"two\n"
    c.write(2, "conf/new", "after")
    assert c.read(3, "conf/new") == b"after"
    wait_for(lambda: len({c.status(i)["hash"] for i in c.nodes()}) == 1, 20, "one state everywhere")


def test_cat_makes_a_backup_with_all_that_was_written_before(shared_cluster, d, tmp_path):
    c = shared_cluster
    for n in range(5):
        writer, reader = n % 3 + 1, (n + 1) % 3 + 1
        c.write(writer, f"{d}/f{n}", "x" * 1000 * n)
        revision = int(c.status(writer)["revision"])
        c.run(f"cat {SNAPSHOT} > {tmp_path}/file", reader)
        assert int(status_of(tmp_path / "file")["revision"]) >= revision
    c.run(f"cp {SNAPSHOT} {tmp_path}/copy; dd if={SNAPSHOT} of={tmp_path}/dd bs=1000 status=none", 1)
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "dd").read_bytes()
    status_of(tmp_path / "dd")


def test_its_size_is_known_while_it_is_open(shared_cluster, d, hand):
    c, h = shared_cluster, hand()
    fill(c, 1, f"{d}/x", 5)
    assert c.stat(1, SNAPSHOT).st_size == 0
    fd = h.open(c.path(1, SNAPSHOT), os.O_RDONLY)
    size = h.fstat(fd).st_size
    content = read_all(h, fd)
    assert len(content) == size > 1_000_000
    assert h.pread(fd, 1000, 500_000) == content[500_000:501_000]
    assert h.pread(fd, 1000, size - 10) == content[-10:]
    assert h.pread(fd, 1000, size) == h.pread(fd, 1000, size + 12345) == b""
    h.close(fd)
    wait_for(lambda: c.stat(1, SNAPSHOT).st_size == 0)


def test_it_does_not_change_while_it_is_read(shared_cluster, d, hand, tmp_path):
    c, h = shared_cluster, hand()
    fill(c, 1, f"{d}/x", 5)
    fd = h.open(c.path(1, SNAPSHOT), os.O_RDONLY)
    revision = c.status(1)["revision"]
    first = h.read(fd, 100_000)
    for n in range(5):
        c.write(2, f"{d}/x/{n}", "new")
    c.keelctl(1, "compact", c.status(2)["revision"])
    (tmp_path / "file").write_bytes(first + read_all(h, fd))
    h.close(fd)
    assert status_of(tmp_path / "file")["revision"] == revision


def test_there_is_one_at_a_time_on_a_node(shared_cluster, hand, tmp_path):
    c, h = shared_cluster, hand()
    fd = h.open(c.path(1, SNAPSHOT), os.O_RDONLY)
    refused(errno.EBUSY, c.read, 1, SNAPSHOT)
    result = c.keelctl(1, "snapshot", "save", tmp_path / "file", check=False)
    assert result.returncode == 3 and "try again" in result.stderr
    assert not os.listdir(tmp_path)
    c.keelctl(2, "snapshot", "save", tmp_path / "file")  # another node has its own
    again = h.dup(fd)
    h.close(fd)
    refused(errno.EBUSY, c.read, 1, SNAPSHOT)
    h.close(again)
    wait_for(lambda: c.read(1, SNAPSHOT))
    fd = h.open(c.path(1, SNAPSHOT), os.O_RDONLY)
    h.kill()
    wait_for(lambda: c.read(1, SNAPSHOT))


def test_only_root_reads_it_and_nobody_writes_it(shared_cluster, hand):
    c = shared_cluster
    result = c.run(f"setpriv --reuid 65534 --regid 65534 --clear-groups cat {SNAPSHOT}", 1, check=False)
    assert result.returncode != 0 and "Permission denied" in result.stderr
    for flags in os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC:
        refused(errno.EPERM, hand().open, c.path(1, SNAPSHOT), flags)


def test_without_a_quorum_there_is_none(make_cluster):
    c = make_cluster(flags=["--request-timeout", "500"])
    followers = c.followers()
    for i in followers:
        c.kill(i)
    left = next(i for i in c.nodes() if i not in followers)
    wait_for(lambda: c.status(left)["quorum"] != "yes")
    refused(errno.ETIMEDOUT, c.read, left, SNAPSHOT)


def test_opening_it_can_be_interrupted_and_a_stop_does_not_wait_for_it(make_cluster, hand):
    c, h = make_cluster(nodes=1), hand()
    fill(c, 1, "x", 100, 1_000_000)
    h.begin("open", c.path(1, SNAPSHOT), os.O_RDONLY)
    h.kill(signal.SIGKILL)
    wait_for(lambda: c.read(1, SNAPSHOT, 60), 60)
    h = hand()
    fd = h.open(c.path(1, SNAPSHOT), os.O_RDONLY, bound=60)
    assert len(h.read(fd, 1000)) == 1000
    c.kill(1, "TERM")
    with pytest.raises(OSError):
        h.read(fd, 1000)
    h.close(fd)
    c.start(1)
    assert len(c.listdir(1, "x")) == 100


def test_nothing_is_left_of_it_on_the_disk(make_cluster, hand):
    c, h = make_cluster(nodes=1), hand()
    fill(c, 1, "x", 5)
    fd = h.open(c.path(1, SNAPSHOT), os.O_RDONLY)
    c.kill(1)  # -9
    h.close(fd)
    c.start(1)
    assert not [name for name in os.listdir(os.path.join(c.dir, "n1", "data")) if "snapshot" in name]


def test_a_full_disk_is_told_by_open_and_the_node_goes_on(make_cluster):
    c = make_cluster(nodes=1, flags=["--log-kept", str(2 << 20)])
    data, away = os.path.join(c.dir, "n1", "data"), os.path.join(c.dir, "away")
    c.kill(1, "TERM")
    os.rename(data, away)
    os.mkdir(data, 0o700)
    run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs", data])
    try:
        shutil.copytree(away, data, dirs_exist_ok=True)
        c.start(1)
        fill(c, 1, "x", 20, 500_000)
        size = len(c.read(1, SNAPSHOT))
        assert size > 10_000_000
        room = os.statvfs(data)
        with open(os.path.join(data, "filler"), "wb") as file:
            file.write(bytes(room.f_bavail * room.f_bsize - (size // 2)))
        refused(errno.ENOSPC, c.read, 1, SNAPSHOT)
        assert c.status(1)["quorum"] == "yes"
        os.unlink(os.path.join(data, "filler"))
        assert len(c.read(1, SNAPSHOT)) >= size
        c.write(1, "after", "x")
    finally:
        c.kill(1)
        run(["umount", data])
