"""Compaction as users see it: what @rev and @log answer on both sides of the line, and what is open over it."""

import concurrent.futures
import errno
import os

import pytest

from keel import run, wait_for
from test_keel_wal import KEEL_WAL

MANY = 3000  # names: more than one answer of the kernel's


def refused(code, function, *arguments):
    with pytest.raises(OSError) as caught:
        function(*arguments)
    assert caught.value.errno == code, caught.value


def revision(c, i=1):
    return int(c.status(i)["revision"])


def compact(c, at=None):
    """Compacts, and waits until all nodes have it."""
    at = at or revision(c)
    c.keelctl(1, "compact", at)
    for i in c.nodes():
        wait_for(lambda i=i: int(c.status(i)["compact_revision"]) >= at)
    return at


def log(c, i, name):
    return [dict(field.split("=", 1) for field in line.split()) for line in c.read(i, f"{name}@log").decode().splitlines()]


def right_or_stale(function, right):
    """The answer is as it would have been before the compaction, or ESTALE: nothing else."""
    try:
        answer = function()
    except OSError as error:
        assert error.errno == errno.ESTALE, error
        return False
    assert answer == right
    return True


@pytest.mark.sanitizer
def test_both_sides_of_the_line(shared_cluster, d):
    c = shared_cluster
    at = []
    for n in range(6):
        c.write(n % 3 + 1, f"{d}/f", f"value {n}")
        at.append(c.revision(1, f"{d}/f"))
    c.write(1, f"{d}/other", "x")
    line = compact(c, at[3])
    for i in c.nodes():
        for n in 0, 1, 2:
            refused(errno.ESTALE, c.read, i, f"{d}/f@rev={at[n]}")
            refused(errno.ESTALE, c.listdir, i, f"{d}/@rev={at[n]}")
        refused(errno.ESTALE, c.read, i, f"{d}/f@rev={line - 1}")
        refused(errno.ESTALE, c.stat, i, f"@rev={line - 1}")
        for n in 3, 4, 5:
            assert c.read(i, f"{d}/f@rev={at[n]}") == f"value {n}".encode()
            assert c.listdir(i, f"{d}/@rev={at[n]}") == ["f"]
        assert [(int(l["revision"]), int(l["version"])) for l in log(c, i, f"{d}/f")] == [(at[5], 6), (at[4], 5), (at[3], 4)]
    # What was live at the line stays readable at revisions in between, whenever it was written.
    c.write(1, f"{d}/f", "last")
    line = compact(c)
    assert c.read(2, f"{d}/other@rev={line}") == b"x"
    assert c.read(3, f"{d}/f@rev={line}") == b"last"
    assert c.xattr(1, f"{d}/f", "user.keel.version") == "7"
    assert c.xattr(1, f"{d}/f", "user.keel.create_revision") == str(at[0])


def test_what_was_deleted_before_the_line_is_gone(shared_cluster, d):
    c = shared_cluster
    c.write(1, f"{d}/f", "x")
    written = c.revision(1, f"{d}/f")
    c.unlink(1, f"{d}/f")
    assert [l["type"] for l in log(c, 2, f"{d}/f")] == ["delete", "put"]
    c.write(1, f"{d}/g", "y")
    compact(c)
    for i in c.nodes():
        refused(errno.ENOENT, c.read, i, f"{d}/f@log")
        refused(errno.ESTALE, c.read, i, f"{d}/f@rev={written}")
    c.write(2, f"{d}/f", "again")  # another life
    assert c.xattr(3, f"{d}/f", "user.keel.version") == "1"
    assert len(log(c, 1, f"{d}/f")) == 1


def test_what_was_taken_off_is_off_after_a_restart_too(make_cluster):
    c = make_cluster()
    for n in range(20):
        c.write(1, "f", f"{n}")
    line = compact(c)
    c.write(1, "f", "after")
    for i in c.nodes():
        c.kill(i)
    for i in c.nodes():
        c.start(i)
    wait_for(lambda: c.leader())
    for i in c.nodes():
        refused(errno.ESTALE, c.read, i, f"f@rev={line - 1}")
        assert c.read(i, f"f@rev={line}") == b"19"
        assert c.read(i, "f") == b"after"
    wait_for(lambda: len({c.status(i)["hash"] for i in c.nodes()}) == 1, what="one state everywhere")


def test_the_status_says_when_what_was_compacted_is_removed(shared_cluster, d):
    c = shared_cluster

    def stored(i):
        applied = int(c.status(i)["applied_index"])
        wait_for(lambda: int(c.status(i)["stored_index"]) >= applied, what=c.status(i))
        return int(c.status(i)["db_used"])

    for n in range(200):
        c.write(1, f"{d}/f", bytes([n]) * 10_000)
    for i in c.nodes():
        wait_for(lambda i=i: c.status(i)["hash"] == c.status(1)["hash"])
    full = [stored(i) for i in c.nodes()]
    compact(c)
    for i, before in zip(c.nodes(), full):
        wait_for(lambda i=i: c.status(i)["compacting"] == "no", what=c.status(i))
        assert stored(i) < before - 1_500_000


def test_removal_takes_small_steps_beside_other_entries_and_larger_ones_alone(make_cluster):
    c = make_cluster(nodes=1)

    def write_much(n):
        with open(c.path(1, f"f{n}"), "wb", buffering=0) as file:
            file.write(b"x")
        descriptor = os.open(c.path(1, f"f{n}"), os.O_WRONLY)  # not empty: each write is a revision
        try:
            for _ in range(800):
                os.pwrite(descriptor, b"y", 0)
        finally:
            os.close(descriptor)

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        list(pool.map(write_much, range(32)))
    compact(c)
    wait_for(lambda: c.status(1)["compacting"] == "no", what=c.status(1))
    c.kill(1, "TERM")
    dump = run([KEEL_WAL, "dump", os.path.join(c.dir, "n1", "data")]).stdout
    commands = [line.split(": ", 1)[1] for line in dump.splitlines() if " command " in line]
    pairs = list(zip(commands, commands[1:]))
    assert "compact_step budget 256" in [step for before, step in pairs if not before.startswith("compact_step")]
    assert "compact_step budget 1024" in commands
    assert not [step for before, step in pairs if step == "compact_step budget 1024" and not before.startswith("compact_step")]


@pytest.mark.cluster(flags=["--history", "1s", "--history-revisions", "5"])
def test_history_ends_by_itself(cluster):
    c = cluster
    for n in range(60):
        c.write(n % 3 + 1, "f", bytes([n]) * 100_000)
    last = revision(c)
    for i in c.nodes():
        wait_for(lambda i=i: int(c.status(i)["compact_revision"]) == last - 5, what=c.status(i))
    assert [int(l["version"]) for l in log(c, 2, "f")] == [60, 59, 58, 57, 56, 55]
    # It counts no more, and the store gets its pages back.
    for i in c.nodes():
        wait_for(lambda i=i: int(c.status(i)["quota_used"]) < 800_000, what=c.status(i))
        wait_for(lambda i=i: int(c.status(i)["db_used"]) < 3_000_000, what=c.status(i))
    wait_for(lambda: len({c.status(i)["hash"] for i in c.nodes()}) == 1, what="one state everywhere")


@pytest.mark.cluster(nodes=1, flags=["--history", "1h", "--history-revisions", "5"])
def test_history_is_kept_for_its_time(cluster):
    c = cluster
    for n in range(40):
        c.write(1, "f", f"{n}")
    first = c.read(1, "f@log").count(b"\n")
    c.keelctl(1, "settings", "history_revisions=1000000", "history_ms=1ms")
    c.write(1, "f", "x")
    assert c.status(1)["compact_revision"] == "0"
    assert c.read(1, "f@log").count(b"\n") == first + 1
    c.keelctl(1, "settings", "history_revisions=1")
    wait_for(lambda: int(c.status(1)["compact_revision"]) == revision(c) - 1)


# ---- open over it ----


_scan = None


def begin_scan(path):
    """One name of a directory, and the rest later."""
    global _scan
    _scan = os.scandir(path)
    return next(_scan).name


def end_scan():
    return [entry.name for entry in _scan]


@pytest.mark.sanitizer
def test_files_that_are_open_over_it(shared_cluster, d, hand):
    c, h = shared_cluster, hand()
    old, new = os.urandom(600_000), os.urandom(600_000)
    c.write(1, f"{d}/f", old)
    at = c.revision(1, f"{d}/f")
    past = h.open(c.path(2, f"{d}/f@rev={at}"), os.O_RDONLY)
    live = h.open(c.path(2, f"{d}/f"), os.O_RDONLY)
    assert h.read(past, 4096) == h.read(live, 4096) == old[:4096]
    c.write(3, f"{d}/f", new)
    assert h.pread(past, 4096, 4096) == old[4096:8192]
    compact(c)
    for offset in 8192, 300_000, 599_000:
        right_or_stale(lambda: h.pread(past, 4096, offset), old[offset:offset + 4096])
    right_or_stale(lambda: h.read(live, 4096), old[4096:8192])
    assert h.pread(live, 4096, 0) == new[:4096]  # from the start: what is current
    refused(errno.ESTALE, c.read, 2, f"{d}/f@rev={at}")
    h.close(past)
    h.close(live)
    assert c.read(2, f"{d}/f") == new


@pytest.mark.sanitizer
def test_listings_that_are_open_over_it(shared_cluster, d, hand):
    c = shared_cluster
    live, past = hand(), hand()
    names = [f"name-that-is-long-enough-{n:05}" for n in range(MANY)]
    c.run(f"cd {d} && mkdir big && cd big && seq -f 'name-that-is-long-enough-%05g' 0 {MANY - 1} | xargs touch", 1, timeout=120)
    at = revision(c)
    first = live(begin_scan, c.path(2, f"{d}/big"))
    first_past = past(begin_scan, c.path(2, f"{d}/big/@rev={at}"))
    c.run(f"cd {d}/big && seq -f 'name-that-is-long-enough-%05g' 1000 {MANY - 1} | xargs rm; touch z", 3, timeout=120)
    compact(c)
    right_or_stale(lambda: sorted([first] + live(end_scan)), names)
    right_or_stale(lambda: sorted([first_past] + past(end_scan)), names)
    refused(errno.ESTALE, c.listdir, 2, f"{d}/big/@rev={at}")
    assert c.listdir(2, f"{d}/big") == names[:1000] + ["z"]


@pytest.mark.sanitizer
def test_a_working_directory_in_the_past(shared_cluster, d, hand):
    c, h = shared_cluster, hand()
    c.run(f"mkdir -p {d}/a/b; echo one > {d}/a/b/f", 1)
    at = revision(c)
    c.run(f"rm -r {d}/a", 1)
    fd = h.open(c.path(1, f"{d}/@rev={at}/a"), os.O_RDONLY | os.O_DIRECTORY)
    h.chdir(c.path(1, f"{d}/@rev={at}/a"))
    assert h.listdir(fd) == ["b"]
    c.write(1, f"{d}/x", "x")
    compact(c)
    for name in ".", "b":
        refused(errno.ESTALE, h.listdir, name)
    for name in "b/f", "b":
        refused(errno.ESTALE, h.stat, name)
    refused(errno.ESTALE, h.open, "b/f", os.O_RDONLY)
    refused(errno.ESTALE, h.listdir, fd)
    h.chdir("/")
    h.close(fd)


@pytest.mark.sanitizer
def test_an_open_file_that_is_gone_outlives_its_history(shared_cluster, d, hand):
    c, h = shared_cluster, hand()
    content = os.urandom(500_000)
    for how in "unlink", "replace":
        c.write(1, f"{d}/f", content)
        fd = h.open(c.path(1, f"{d}/f"), os.O_RDWR)
        elsewhere = h.open(c.path(2, f"{d}/f"), os.O_RDONLY)
        if how == "unlink":
            c.unlink(3, f"{d}/f")
        else:
            c.write(3, f"{d}/t", "new")
            c.rename(3, f"{d}/t", f"{d}/f")
        c.write(3, f"{d}/x", how)
        compact(c)
        for one in fd, elsewhere:
            assert h.pread(one, 1 << 20, 0) == content
            assert h.fstat(one).st_size == len(content)
        assert h.pwrite(fd, b"mine", 10) == 4
        assert h.pread(fd, 8, 8) == content[8:10] + b"mine" + content[14:16]
        h.close(fd)
        h.close(elsewhere)
