"""Defragmentation: the store's file shrinks while the node serves, and nothing is lost, also with kill -9 in the middle."""

import errno
import os

import pytest

import keel
from keel import as_nobody, run, wait_for
from load import Load
from test_durability import kill_now, same_hash_everywhere

MEGABYTE = 1000000


def store(c, i, name=""):
    return os.path.join(c.dir, f"n{i}", "data", name)


def on_disk(c, i):
    return os.stat(store(c, i, "store/data.mdb")).st_blocks * 512


def number(c, i, name):
    return int(c.status(i)[name])


def free(c, i):
    """In the file, for pages to come."""
    status = c.status(i)
    return int(status["db_size"]) - int(status["db_used"])


def put_files(c, directory, count):
    """Of a megabyte each, and in the stores."""
    c.run(f"mkdir -p {directory}; for i in $(seq {count}); do head -c {MEGABYTE} /dev/urandom > {directory}/$i; done", 1, timeout=60)
    index = number(c, 1, "applied_index")
    for i in c.nodes():
        wait_for(lambda i=i: number(c, i, "stored_index") >= index, 60, "stored")


def make_holes(c, count):
    """So many megabytes that were in the stores, and are free in their files."""
    put_files(c, "gone", count)
    c.run("rm -r gone", 1)
    c.keelctl(1, "compact", c.status(1)["revision"])
    c.write(1, "last", "x")
    for i in c.nodes():
        wait_for(lambda i=i: free(c, i) > 0.9 * count * MEGABYTE, 60, "free space")


def hashes(c, directory, i=1):
    return c.run(f"md5sum {directory}/*", i, timeout=60).stdout


def is_done(c, i, count=1):
    status = c.status(i)
    return int(status["defragmentations"]) >= count and status["defragmenting"] == "no"


@pytest.mark.sanitizer
def test_space_goes_back_to_the_disk_while_reads_and_writes_go_on(make_cluster):
    c = make_cluster()
    put_files(c, "kept", 12)
    before = hashes(c, "kept")
    make_holes(c, 40)
    with Load(c, ["append", "pwrite", "append"], pause=0.02) as load:
        load.wait_for_progress(20)
        assert all(free(c, i) > 30 * MEGABYTE for i in c.nodes())
        for i in c.nodes():
            c.keelctl(i, "defrag")
        for i in c.nodes():
            while not is_done(c, i):
                assert hashes(c, "kept", i) == before
            assert free(c, i) < 9 * MEGABYTE
            wait_for(lambda i=i: not os.path.exists(store(c, i, "store.new")), 20)
        load.wait_for_progress(20)
        assert all(hashes(c, "kept", i) == before for i in c.nodes())
    assert load.errors() == set()
    load.check()
    same_hash_everywhere(c)
    for i in c.nodes():
        c.kill(i, "TERM")
        c.start(i)
    wait_for(c.leader, 20)
    load.check()
    assert hashes(c, "kept", 2) == before
    assert all(on_disk(c, i) < number(c, i, "db_used") + 18 * MEGABYTE for i in c.nodes())
    same_hash_everywhere(c)


def test_a_file_that_is_more_than_half_free_is_defragmented_without_being_asked(make_cluster):
    c = make_cluster(1)
    put_files(c, "gone", 75)
    c.run("rm -r gone", 1)
    assert number(c, 1, "db_size") > 64 << 20 and number(c, 1, "defragmentations") == 0
    c.keelctl(1, "compact", c.status(1)["revision"])

    def written_and_done():
        c.write(1, "f", "x")
        return is_done(c, 1)

    wait_for(written_and_done, 60, "defragmented by itself", pause=0.2)
    assert number(c, 1, "db_size") < 10 << 20
    assert on_disk(c, 1) < 10 << 20
    assert c.read(1, "f") == b"x"


def size_of(path):
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


MOMENTS = {
    "begun": lambda c, inode: os.path.exists(store(c, 1, "store.new")),
    "copying": lambda c, inode: size_of(store(c, 1, "store.new/data.mdb")) > 6 << 20,
    "copied": lambda c, inode: size_of(store(c, 1, "store.new/data.mdb")) > 18 << 20,
    "switched": lambda c, inode: os.stat(store(c, 1, "store")).st_ino != inode,
}


def test_killed_during_it_a_node_has_all_that_was_acknowledged(make_cluster):
    c = make_cluster(1)
    put_files(c, "kept", 20)
    before = hashes(c, "kept")
    make_holes(c, 30)
    with Load(c, ["append", "pwrite"], pause=0.02) as load:
        for moment, come in MOMENTS.items():
            load.wait_for_progress(20)
            inode = os.stat(store(c, 1, "store")).st_ino
            c.write(1, "@keel/defrag", "1\n", flags=0)
            wait_for(lambda come=come, inode=inode: come(c, inode), 20, moment, pause=0.0005)
            kill_now(c, 1)
            c.start(1)
            assert not os.path.exists(store(c, 1, "store.new")), moment
            assert hashes(c, "kept") == before, moment
        load.wait_for_progress(20)
    load.check()
    assert free(c, 1) < 18 * MEGABYTE


def test_a_node_that_is_stopped_during_it_stops_at_once_and_starts_clean(make_cluster):
    c = make_cluster(1)
    put_files(c, "kept", 30)
    before = hashes(c, "kept")
    for moment in ["begun", "copying", "switched"]:
        inode = os.stat(store(c, 1, "store")).st_ino
        c.write(1, "@keel/defrag", "1\n", flags=0)
        wait_for(lambda: MOMENTS[moment](c, inode), 20, moment, pause=0.0005)
        c.kill(1, "TERM")
        assert not os.path.exists(store(c, 1, "store.new")), moment
        c.start(1)
        assert hashes(c, "kept") == before


def test_without_room_for_a_second_store_nothing_is_begun():
    c = keel.Cluster(1)
    disk = store(c, 1)
    os.makedirs(disk)
    run(["mount", "-t", "tmpfs", "-o", "size=100m,mode=0700", "small", disk])
    try:
        c.up()
        put_files(c, "kept", 20)
        wait_for(lambda: number(c, 1, "db_used") > 20 * MEGABYTE, 20)
        result = c.keelctl(1, "defrag", check=False)
        assert result.returncode == 1 and "no room on the node's disk" in result.stderr
        with pytest.raises(OSError) as caught:
            c.write(1, "@keel/defrag", "1", flags=0)
        assert caught.value.errno == errno.ENOSPC
        assert number(c, 1, "defragmentations") == 0 and not os.path.exists(store(c, 1, "store.new"))
        run(["mount", "-o", "remount,size=400m", disk])
        c.keelctl(1, "defrag")
        wait_for(lambda: is_done(c, 1), 20)
    finally:
        c.down()
        run(["umount", "-l", disk], check=False)
        c.close()


def test_the_file_takes_a_1_of_root_and_nothing_else(shared_node):
    c = shared_node
    st = c.stat(1, "@keel/defrag")
    assert (st.st_mode & 0o7777, st.st_uid) == (0o200, 0)
    for text in ["0", "now", "1 1", "\n"]:
        with pytest.raises(OSError) as caught:
            c.write(1, "@keel/defrag", text, flags=0)
        assert caught.value.errno == errno.EINVAL, text

    with pytest.raises(PermissionError):
        c.call(1, as_nobody(lambda path: os.open(path, os.O_WRONLY)), "@keel/defrag")
    done = number(c, 1, "defragmentations")
    c.write(1, "@keel/defrag", "1", flags=0)
    wait_for(lambda: is_done(c, 1, done + 1), 20)
    c.keelctl(1, "defrag")
    wait_for(lambda: is_done(c, 1, done + 2), 20)
