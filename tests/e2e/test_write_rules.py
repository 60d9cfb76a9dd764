"""What a write is: one revision, durable when it returns; truncation and creation that wait for the content; full buffers; append."""

import errno
import os
import signal
import time

import pytest

from hands import in_parallel
from keel import bounded, wait_for

A, B, C = 1, 2, 3
LIMIT = 1020 << 10


def version(c, name, node=B):
    return int(c.xattr(node, name, "user.keel.version"))


def created(c, name, node=B):
    return int(c.xattr(node, name, "user.keel.create_revision"))


def fails(code, call, *arguments, **options):
    with pytest.raises(OSError) as caught:
        call(*arguments, **options)
    assert caught.value.errno == code, caught.value


def read_all(path):
    with open(path, "rb", buffering=0) as file:
        return b"".join(iter(lambda: file.read(1 << 20), b""))


# ---- one write, one revision ----

@pytest.mark.sanitizer
def test_one_write_is_one_revision(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    fd = h.open(c.path(A, f"{d}/f"), os.O_CREAT | os.O_WRONLY, 0o644)
    before = int(c.status(A)["revision"])
    for n in range(1, 6):
        h.write(fd, b"x" * n)
        assert version(c, f"{d}/f") == n
        assert c.revision(C, f"{d}/f") == before + n
        assert c.read(C, f"{d}/f") == b"x" * sum(range(n + 1))
    h.close(fd)
    assert version(c, f"{d}/f") == 5
    assert int(c.status(A)["revision"]) == before + 5


def test_a_write_of_the_same_bytes_is_a_revision(shared_cluster, d):
    c = shared_cluster
    for n in range(1, 4):
        c.write(n, f"{d}/f", "same")
        assert version(c, f"{d}/f") == n


def test_what_echo_writes_on_one_node_cat_shows_on_another(shared_cluster, d):
    c = shared_cluster
    for n in range(30):
        writer, reader = n % 3 + 1, (n + 1 + n // 3 % 2) % 3 + 1
        c.run(f"echo value {n} > {d}/f", writer)
        assert c.run(f"cat {d}/f", reader).stdout == f"value {n}\n"
    assert version(c, f"{d}/f") == 30


def test_an_empty_write_changes_nothing(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "x")
    fd = h.open(c.path(A, f"{d}/f"), os.O_WRONLY)
    h.write(fd, b"")
    h.close(fd)
    assert (version(c, f"{d}/f"), c.read(B, f"{d}/f")) == (1, b"x")


# ---- truncation waits for the content ----

@pytest.mark.sanitizer
def test_a_file_that_is_overwritten_is_never_seen_empty(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "0\n")

    def writer():
        for n in range(1, 151):
            fd = os.open(c.path(A, f"{d}/f"), os.O_WRONLY | os.O_TRUNC)
            os.write(fd, f"{n}\n".encode())
            os.close(fd)

    def reader(node):
        seen = []
        while not seen or seen[-1] != 150:
            seen.append(int(read_all(c.path(node, f"{d}/f"))))
        return seen

    _, *readers = in_parallel([writer, *(lambda node=node: reader(node) for node in (A, B, C))])
    for seen in readers:
        assert seen == sorted(seen)
    assert version(c, f"{d}/f") == 151


def test_a_truncated_file_keeps_its_old_size_and_content_until_the_first_write(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "the old value")
    fd = h.open(c.path(A, f"{d}/f"), os.O_WRONLY | os.O_TRUNC)
    for i in c.nodes():
        assert c.stat(i, f"{d}/f").st_size == 13
        assert c.read(i, f"{d}/f") == b"the old value"
    h.write(fd, b"new")
    for i in c.nodes():
        assert c.stat(i, f"{d}/f").st_size == 3
        assert c.read(i, f"{d}/f") == b"new"
    h.close(fd)
    assert version(c, f"{d}/f") == 2


def test_ftruncate_to_zero_waits_for_the_content_too(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "the old value")
    fd = h.open(c.path(A, f"{d}/f"), os.O_RDWR)
    h.ftruncate(fd, 0)
    assert c.read(B, f"{d}/f") == b"the old value"
    h.write(fd, b"new")
    assert (c.read(B, f"{d}/f"), version(c, f"{d}/f")) == (b"new", 2)
    h.close(fd)
    assert version(c, f"{d}/f") == 2


def test_ftruncate_to_another_size_is_a_revision_at_once(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "0123456789")
    fd = h.open(c.path(A, f"{d}/f"), os.O_RDWR)
    h.ftruncate(fd, 4)
    assert (c.read(B, f"{d}/f"), version(c, f"{d}/f")) == (b"0123", 2)
    h.ftruncate(fd, 6)
    assert (c.read(C, f"{d}/f"), version(c, f"{d}/f")) == (b"0123\0\0", 3)
    h.ftruncate(fd, 6)
    assert version(c, f"{d}/f") == 3
    h.close(fd)
    c.call(B, lambda path: os.truncate(path, 2), f"{d}/f")
    assert (c.read(A, f"{d}/f"), version(c, f"{d}/f")) == (b"01", 4)


def test_emptying_a_file_in_a_shell_is_settled_at_close(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "old")
    c.run(f": > {d}/f", A)
    assert (c.read(B, f"{d}/f"), version(c, f"{d}/f")) == (b"", 2)
    c.write(A, f"{d}/f", "new")
    c.run(f"truncate -s 0 {d}/f", C)
    assert (c.read(B, f"{d}/f"), version(c, f"{d}/f")) == (b"", 4)


def test_a_truncation_without_a_write_yields_to_a_change_by_somebody_else(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "old")
    fd = h.open(c.path(A, f"{d}/f"), os.O_WRONLY | os.O_TRUNC)
    c.write(B, f"{d}/f", "of another")
    h.close(fd)
    for i in c.nodes():
        assert c.read(i, f"{d}/f") == b"of another"
    assert version(c, f"{d}/f") == 2


def test_a_first_write_after_truncation_wins_over_a_change_by_somebody_else(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "old")
    fd = h.open(c.path(A, f"{d}/f"), os.O_WRONLY | os.O_TRUNC)
    c.write(B, f"{d}/f", "a longer value of another")
    h.write(fd, b"mine")
    h.close(fd)
    assert (c.read(C, f"{d}/f"), version(c, f"{d}/f")) == (b"mine", 3)


@pytest.mark.parametrize("how", ["open", "ftruncate"])
def test_a_first_write_that_fails_takes_the_truncation_with_it(shared_cluster, hand, d, how):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "old")
    fd = h.open(c.path(A, f"{d}/f"), os.O_WRONLY | (os.O_TRUNC if how == "open" else 0))
    if how == "ftruncate":
        h.ftruncate(fd, 0)
    fails(errno.EFBIG, h.pwrite, fd, b"x", LIMIT)
    h.close(fd)
    assert (c.read(B, f"{d}/f"), version(c, f"{d}/f")) == (b"old", 1)


# ---- creation waits for the content ----

@pytest.mark.sanitizer
def test_a_new_file_is_there_at_once_for_its_own_node_and_elsewhere_with_its_content(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    # The grace time of a second may be over before we have looked: then once more.
    def unseen(name):
        began = time.monotonic()
        fd = h.open(c.path(A, name), os.O_CREAT | os.O_WRONLY, 0o640)
        own, elsewhere = c.exists(A, name), c.exists(B, name)
        listed = os.path.basename(name) in c.listdir(A, d)
        listed_elsewhere = os.path.basename(name) in c.listdir(C, d)
        in_time = time.monotonic() - began < 0.9
        h.write(fd, b"first")
        assert (own, listed) == (True, True)
        assert c.read(B, name) == b"first"
        assert version(c, name) == 1
        assert created(c, name) == c.revision(C, name)
        assert c.stat(C, name).st_mode & 0o7777 == 0o640
        h.close(fd)
        assert version(c, name) == 1
        if in_time:
            assert (elsewhere, listed_elsewhere) == (False, False)
        return in_time

    assert any(unseen(f"{d}/f{n}") for n in range(20))


def test_a_new_file_appears_elsewhere_after_a_second(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    fd = h.open(c.path(A, f"{d}/f"), os.O_CREAT | os.O_WRONLY, 0o644)
    wait_for(lambda: c.exists(B, f"{d}/f"), 5)
    assert c.read(B, f"{d}/f") == b""
    assert version(c, f"{d}/f") == 1
    h.write(fd, b"later")
    assert (c.read(B, f"{d}/f"), version(c, f"{d}/f")) == (b"later", 2)


def test_a_new_file_without_content_is_settled_at_close(shared_cluster, d):
    c = shared_cluster
    for n in range(10):
        c.run(f": > {d}/f{n}", A)
        assert (c.read(B, f"{d}/f{n}"), version(c, f"{d}/f{n}", C)) == (b"", 1)
        c.run(f"touch {d}/t{n}", A)
        assert c.read(B, f"{d}/t{n}") == b""


@pytest.mark.parametrize("operation", ["fchmod", "chmod", "link_count", "rename", "fsync", "open"])
def test_any_other_operation_makes_a_new_file_visible(shared_cluster, hand, d, operation):
    c, h = shared_cluster, hand()
    name = path = c.path(A, f"{d}/f")
    seen = f"{d}/f"
    fd = h.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    if operation == "fchmod":
        h.fchmod(fd, 0o600)
    elif operation == "chmod":
        h.chmod(path, 0o600)
    elif operation == "link_count":
        h.utime(path, (1, 1))
    elif operation == "rename":
        h.rename(name, c.path(A, f"{d}/g"))
        seen = f"{d}/g"
    elif operation == "fsync":
        h.fsync(fd)
    else:
        h.close(h.open(path, os.O_RDONLY))
    assert c.exists(B, seen)
    h.write(fd, b"x")
    assert c.read(C, seen) == b"x"


def test_a_new_file_can_be_removed_before_it_was_written(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    fd = h.open(c.path(A, f"{d}/f"), os.O_CREAT | os.O_RDWR, 0o644)
    h.unlink(c.path(A, f"{d}/f"))
    h.write(fd, b"kept here")
    assert h.pread(fd, 100, 0) == b"kept here"
    h.close(fd)
    for i in c.nodes():
        assert c.listdir(i, d) == []


@pytest.mark.sanitizer
def test_a_new_file_becomes_the_one_that_another_node_has_created_meanwhile(shared_cluster, hand, d):
    c, h = shared_cluster, hand()

    def adopted(name):
        began = time.monotonic()
        fd = h.open(c.path(A, name), os.O_CREAT | os.O_RDWR, 0o600)
        c.write(B, name, "theirs")
        in_time = time.monotonic() - began < 0.9
        h.pwrite(fd, b"OURS", 0)
        assert c.read(C, name) == b"OURSrs"
        assert h.pread(fd, 100, 0) == b"OURSrs"
        assert version(c, name) == (2 if in_time else 3)
        if in_time:
            assert c.stat(A, name).st_mode & 0o777 == 0o644
        assert h.fstat(fd).st_ino == c.stat(C, name).st_ino
        h.close(fd)
        return in_time

    assert any(adopted(f"{d}/f{n}") for n in range(20))


def test_creation_with_truncation_replaces_what_another_node_has_created_meanwhile(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    fd = h.open(c.path(A, f"{d}/f"), os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    c.write(B, f"{d}/f", "a longer value of another")
    h.write(fd, b"mine")
    h.close(fd)
    assert c.read(C, f"{d}/f") == b"mine"


def test_an_unwritten_new_file_does_not_empty_what_another_node_has_created(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    fd = h.open(c.path(A, f"{d}/f"), os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    c.write(B, f"{d}/f", "theirs")
    h.close(fd)
    assert c.read(C, f"{d}/f") == b"theirs"


def test_appends_by_all_nodes_to_a_file_that_does_not_exist_lose_no_line(shared_cluster, d):
    c = shared_cluster
    for n in range(10):
        in_parallel([lambda i=i: append_line(c.path(i, f"{d}/f{n}"), f"n{i}\n") for i in c.nodes()])
        assert sorted(c.read(A, f"{d}/f{n}").split()) == [b"n1", b"n2", b"n3"]


def append_line(path, line):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        assert os.write(fd, line.encode()) == len(line)
    finally:
        os.close(fd)


# ---- exclusive creation ----

def take(make, path):
    try:
        make(path)
    except FileExistsError:
        return False
    return True


@pytest.mark.sanitizer
@pytest.mark.parametrize("what", ["file", "directory", "symlink"])
def test_exactly_one_of_many_creators_on_all_nodes_succeeds(shared_cluster, d, what):
    c = shared_cluster
    make = {
        "file": lambda path: os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)),
        "directory": os.mkdir,
        "symlink": lambda path: os.symlink("x", path),
    }[what]
    rounds = 15
    results = in_parallel([
        lambda i=i: [take(make, c.path(i, f"{d}/{n}")) for n in range(rounds)]
        for i in c.nodes() for _ in range(3)])
    assert [sum(won) for won in zip(*results)] == [1] * rounds


def test_exclusive_creation_is_seen_everywhere_when_it_returns(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    h.open(c.path(A, f"{d}/f"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    assert c.exists(B, f"{d}/f")
    fails(errno.EEXIST, c.write, C, f"{d}/f", "x", flags=os.O_CREAT | os.O_EXCL)


def test_exclusive_creation_sees_a_new_file_of_its_own_node(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    h.open(c.path(A, f"{d}/f"), os.O_CREAT | os.O_WRONLY, 0o644)
    fails(errno.EEXIST, c.write, A, f"{d}/f", "x", flags=os.O_CREAT | os.O_EXCL)


# ---- append, and writing in the middle ----

@pytest.mark.sanitizer
def test_appending_on_three_nodes_at_once_loses_no_line(shared_cluster, d):
    c = shared_cluster

    def appender(i, k):
        fd = os.open(c.path(i, f"{d}/log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for n in range(40):
            line = f"node {i} process {k} line {n}\n".encode()
            assert os.write(fd, line) == len(line)
        os.close(fd)

    in_parallel([lambda i=i, k=k: appender(i, k) for i in c.nodes() for k in range(2)])
    lines = c.read(B, f"{d}/log").decode().splitlines()
    for i in c.nodes():
        for k in range(2):
            own = [line for line in lines if line.startswith(f"node {i} process {k} ")]
            assert own == [f"node {i} process {k} line {n}" for n in range(40)]
    assert len(lines) == 240
    # One revision each, and one more if an open of the same node came before the first write.
    assert version(c, f"{d}/log") in (240, 241)


def test_echo_appending_in_shells_on_three_nodes_loses_no_line(shared_cluster, d):
    c = shared_cluster
    in_parallel([
        lambda i=i: c.run(f"for n in $(seq 40); do echo n{i} $n >> {d}/log; done", i, timeout=60)
        for i in c.nodes()])
    lines = c.read(A, f"{d}/log").decode().splitlines()
    assert sorted(lines) == sorted(f"n{i} {n}" for i in c.nodes() for n in range(1, 41))


def test_a_large_append_is_one_piece(shared_cluster, d):
    c = shared_cluster
    in_parallel([
        lambda i=i: append_line(c.path(i, f"{d}/log"), str(i) * 100_000 + "\n") for i in c.nodes()])
    lines = c.read(B, f"{d}/log").decode().splitlines()
    assert sorted(lines) == [str(i) * 100_000 for i in c.nodes()]


def test_a_write_at_an_offset_keeps_the_rest(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "0123456789")
    fd = h.open(c.path(B, f"{d}/f"), os.O_WRONLY)
    h.pwrite(fd, b"xyz", 3)
    assert c.read(C, f"{d}/f") == b"012xyz6789"
    h.pwrite(fd, b"end", 9)
    assert c.read(A, f"{d}/f") == b"012xyz678end"


def test_writes_at_different_offsets_on_different_nodes_keep_each_other(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", b"." * 300)

    def writer(i):
        fd = os.open(c.path(i, f"{d}/f"), os.O_WRONLY)
        for n in range(i - 1, 300, 3):
            os.pwrite(fd, str(i).encode(), n)
        os.close(fd)

    in_parallel([lambda i=i: writer(i) for i in c.nodes()])
    assert c.read(B, f"{d}/f") == b"123" * 100


def test_a_gap_is_filled_with_zeroes(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    fd = h.open(c.path(A, f"{d}/f"), os.O_CREAT | os.O_WRONLY, 0o644)
    h.pwrite(fd, b"end", 100_000)
    assert c.read(B, f"{d}/f") == bytes(100_000) + b"end"
    assert version(c, f"{d}/f") == 1
    c.call(C, lambda path: os.truncate(path, 100_010), f"{d}/f")
    assert c.read(A, f"{d}/f") == bytes(100_000) + b"end" + bytes(7)


def test_a_shrunk_and_regrown_file_shows_no_old_bytes(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", b"secret" * 1000)
    c.call(B, lambda path: os.truncate(path, 1), f"{d}/f")
    c.call(C, lambda path: os.truncate(path, 6000), f"{d}/f")
    assert c.read(A, f"{d}/f") == b"s" + bytes(5999)


def test_concurrent_whole_writes_are_never_mixed(shared_cluster, d):
    c = shared_cluster

    def writer(i):
        for n in range(25):
            fd = os.open(c.path(i, f"{d}/f"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.write(fd, f"{i}".encode() * (3000 + 1000 * i + n))
            os.close(fd)

    def reader(i):
        seen = set()
        for _ in range(150):
            seen.add(read_all(c.path(i, f"{d}/f")))
        return seen

    c.write(A, f"{d}/f", "1" * 4000)
    results = in_parallel(
        [*(lambda i=i: writer(i) for i in c.nodes()), *(lambda i=i: reader(i) for i in c.nodes())])
    for seen in results[3:]:
        for value in seen:
            i = int(value[:1])
            assert value == str(i).encode() * len(value)
            assert 0 <= len(value) - 3000 - 1000 * i < 25
    assert version(c, f"{d}/f") == 76


# ---- full buffers ----

BLOCK = b"b" * 4096


@pytest.mark.sanitizer
def test_full_buffers_and_the_rest_are_one_revision(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "old")
    fd = h.open(c.path(A, f"{d}/f"), os.O_WRONLY | os.O_TRUNC)
    for _ in range(5):
        h.write(fd, BLOCK)
        for i in c.nodes():
            assert c.read(i, f"{d}/f") == b"old"
            assert c.stat(i, f"{d}/f").st_size == 3
    h.write(fd, b"rest")
    assert c.read(B, f"{d}/f") == 5 * BLOCK + b"rest"
    assert version(c, f"{d}/f") == 2
    h.close(fd)
    assert version(c, f"{d}/f") == 2


@pytest.mark.parametrize("end", ["close", "fsync", "fdatasync"])
def test_full_buffers_are_committed_at_close_and_fsync(shared_cluster, hand, d, end):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "old")
    fd = h.open(c.path(A, f"{d}/f"), os.O_WRONLY | os.O_TRUNC)
    for _ in range(3):
        h.write(fd, BLOCK)
    assert c.read(B, f"{d}/f") == b"old"
    h(end, fd)
    assert c.read(B, f"{d}/f") == 3 * BLOCK
    assert version(c, f"{d}/f") == 2


def test_after_a_commit_every_write_is_a_revision_again(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    fd = h.open(c.path(A, f"{d}/f"), os.O_CREAT | os.O_WRONLY, 0o644)
    h.write(fd, BLOCK)
    h.fsync(fd)
    for n in range(2, 5):
        h.write(fd, BLOCK)
        assert c.read(B, f"{d}/f") == n * BLOCK
        assert version(c, f"{d}/f") == n


@pytest.mark.parametrize("flags", [
    os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_SYNC, os.O_WRONLY | os.O_DSYNC,
    os.O_WRONLY | os.O_DIRECT, os.O_RDWR], ids=["append", "sync", "dsync", "direct", "read-write"])
def test_handles_that_ask_for_it_are_never_held_back(shared_cluster, hand, d, flags):
    c, h = shared_cluster, hand()
    fd = h.open(c.path(A, f"{d}/f"), os.O_CREAT | os.O_TRUNC | flags, 0o644)
    for n in range(1, 4):
        h.write(fd, BLOCK)
        assert c.read(B, f"{d}/f") == n * BLOCK
        assert version(c, f"{d}/f") == n


@pytest.mark.parametrize("size", [1, 4095, 4097, 4096 + 256, 2048])
def test_writes_that_are_no_full_buffers_are_never_held_back(shared_cluster, hand, d, size):
    c, h = shared_cluster, hand()
    fd = h.open(c.path(A, f"{d}/f"), os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    for n in range(1, 4):
        h.write(fd, b"x" * size)
        assert c.read(B, f"{d}/f") == n * size * b"x"
        assert version(c, f"{d}/f") == n


def test_a_handle_that_did_not_begin_empty_is_never_held_back(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "old")
    fd = h.open(c.path(A, f"{d}/f"), os.O_WRONLY)
    h.write(fd, BLOCK)
    assert (c.read(B, f"{d}/f"), version(c, f"{d}/f")) == (BLOCK, 2)


def test_exclusive_creation_with_full_buffers_is_two_revisions(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    fd = h.open(c.path(A, f"{d}/f"), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
    for _ in range(4):
        h.write(fd, BLOCK)
    assert (c.read(B, f"{d}/f"), version(c, f"{d}/f")) == (b"", 1)
    h.close(fd)
    assert (c.read(B, f"{d}/f"), version(c, f"{d}/f")) == (4 * BLOCK, 2)


def test_a_write_out_of_sequence_commits_what_was_held_back(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    fd = h.open(c.path(A, f"{d}/f"), os.O_CREAT | os.O_WRONLY, 0o644)
    h.write(fd, BLOCK)
    h.pwrite(fd, b"x" * 4096, 8192)
    assert c.read(B, f"{d}/f") == BLOCK + bytes(4096) + b"x" * 4096
    h.close(fd)
    assert c.read(C, f"{d}/f") == BLOCK + bytes(4096) + b"x" * 4096


def test_a_child_that_closes_its_copy_of_the_descriptor_does_not_commit(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "old")
    c.run(f"{{ head -c 4096 /dev/zero; /bin/true; head -c 4096 /dev/zero; echo end; }} > {d}/f", A)
    assert c.read(B, f"{d}/f") == bytes(8192) + b"end\n"




@pytest.mark.sanitizer
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV])
def test_a_writer_killed_by_a_signal_leaves_the_old_value(shared_cluster, hand, d, sig):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "old")
    fd = h.open(c.path(A, f"{d}/f"), os.O_WRONLY | os.O_TRUNC)
    for _ in range(3):
        h.write(fd, BLOCK)
    h(signal.signal, sig, signal.SIG_DFL) if sig != signal.SIGKILL else None
    h.kill(sig)
    # When a writer is gone for its parent, its files are closed.
    for i in c.nodes():
        assert c.read(i, f"{d}/f") == b"old"
    assert version(c, f"{d}/f") == 1


def test_a_writer_that_ends_with_an_error_commits(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "old")
    c.run(f"(head -c 8192 /dev/zero; exit 3) > {d}/f", A, check=False)
    assert c.read(B, f"{d}/f") == bytes(8192)
    program = "import os,sys; f = os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC); os.write(f, b'y' * 4096); os._exit(7)"
    c.run(f'python3 -c "{program}" {d}/f', A, check=False)
    assert c.read(B, f"{d}/f") == b"y" * 4096


def test_a_killed_pipeline_leaves_the_old_value(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "old")
    c.run(f"exec 3< <(head -c 40960 /dev/zero; exec sleep 100); producer=$!;"
          f" timeout -s KILL 0.5 dd bs=4096 iflag=fullblock of={d}/f <&3; kill $producer", A, check=False)
    assert (c.read(B, f"{d}/f"), version(c, f"{d}/f")) == (b"old", 1)


# Each writes 100 KiB and something of zeroes to f.
TOOLS = {
    "cp": "cp \"$src\" {f}",
    "cat": "cat \"$src\" > {f}",
    "dd-4k": "dd if=\"$src\" of={f} bs=4096 status=none",
    "dd-64k": "dd if=\"$src\" of={f} bs=64k status=none",
    "dd-1m": "dd if=\"$src\" of={f} bs=1M status=none",
    "tee": "tee {f} < \"$src\" > /dev/null",
    "head": "head -c 102407 /dev/zero > {f}",
    "python": "python3 -c \"open('{f}', 'wb').write(bytes(102407))\"",
    "python-pieces": "python3 -c \"f = open('{f}', 'wb'); [f.write(bytes(4096)) for _ in range(25)]; f.write(bytes(7))\"",
    "perl": "perl -e 'for (1 .. 25) {{ print \"\\0\" x 4096 }} print \"\\0\" x 7' > {f}",
    "awk": "awk 'BEGIN {{ for (i = 0; i < 102407; i++) printf \"%c\", 0 }}' > {f}",
}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_overwrites_a_file_makes_one_revision(shared_cluster, d, tmp_path, tool):
    c = shared_cluster
    (tmp_path / "src").write_bytes(bytes(102407))
    c.write(A, f"{d}/f", "old")
    c.run(TOOLS[tool].format(f=f"{d}/f"), A, env={"src": str(tmp_path / "src")})
    assert c.read(B, f"{d}/f") == bytes(102407)
    assert version(c, f"{d}/f") == 2


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_makes_a_file_makes_one_revision_or_two_with_o_excl(shared_cluster, d, tmp_path, tool):
    c = shared_cluster
    (tmp_path / "src").write_bytes(bytes(102407))
    c.run(TOOLS[tool].format(f=f"{d}/f"), A, env={"src": str(tmp_path / "src")})
    assert c.read(B, f"{d}/f") == bytes(102407)
    assert version(c, f"{d}/f") == (2 if tool == "cp" else 1)


def test_jq_and_seq_through_tee_make_one_revision(shared_cluster, d):
    c = shared_cluster
    c.run(f"jq -n '[range(30000)]' > {d}/j", A)
    assert (version(c, f"{d}/j"), len(c.read(B, f"{d}/j")) > 150_000) == (1, True)
    c.run(f"jq -n '[range(20000)]' > {d}/j", A)
    assert version(c, f"{d}/j") == 2
    c.run(f"seq 100000 | tee {d}/s > /dev/null", A)
    expected = "".join(f"{n}\n" for n in range(1, 100001)).encode()
    assert c.read(B, f"{d}/s") == expected
    c.run(f"seq 100000 > {d}/s", B)
    assert (c.read(C, f"{d}/s"), version(c, f"{d}/s")) == (expected, 2) or version(c, f"{d}/s") > 2


def test_three_pieces_of_a_quarter_mebibyte_are_one_revision(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    fd = h.open(c.path(A, f"{d}/f"), os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    for n in range(3):
        h.write(fd, bytes([n]) * (256 << 10))
    h.close(fd)
    assert c.read(B, f"{d}/f") == b"".join(bytes([n]) * (256 << 10) for n in range(3))
    assert version(c, f"{d}/f") == 1


# ---- the size limit ----

@pytest.mark.sanitizer
def test_a_file_of_the_largest_size_can_be_written_and_not_one_byte_more(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", os.urandom(1) * LIMIT)
    assert c.stat(B, f"{d}/f").st_size == LIMIT
    assert len(c.read(C, f"{d}/f")) == LIMIT
    fails(errno.EFBIG, c.write, A, f"{d}/f", b"x" * (LIMIT + 1))
    fails(errno.EFBIG, c.append, B, f"{d}/f", b"x")
    fails(errno.EFBIG, c.call, B, lambda path: os.truncate(path, LIMIT + 1), f"{d}/f")
    fails(errno.EFBIG, c.call, B, lambda path: fallocate(path, 0, 0, LIMIT + 1), f"{d}/f")
    fails(errno.EFBIG, c.write, A, f"{d}/new", b"x" * (LIMIT + 1))
    assert c.stat(B, f"{d}/f").st_size == LIMIT
    assert version(c, f"{d}/f") == 1


def fallocate(path, mode, offset, length):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDWR)
    try:
        if libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(fd)


def test_a_value_that_grows_too_large_fails_in_write_and_leaves_the_old_one(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "old")
    fd = h.open(c.path(A, f"{d}/f"), os.O_WRONLY | os.O_TRUNC)
    for _ in range(255):
        h.write(fd, BLOCK)
    fails(errno.EFBIG, h.write, fd, BLOCK)
    h.close(fd)
    for i in c.nodes():
        assert c.read(i, f"{d}/f") == b"old"
    assert version(c, f"{d}/f") == 1


@pytest.mark.parametrize("tool", [
    "dd if=/dev/zero of={f} bs=4096 count=300 status=none", "head -c 2000000 /dev/zero > {f}",
    "cp \"$src\" {f}", "echo \"$(yes | head -c 1100000)\" > {f}"])
def test_a_tool_is_told_that_a_value_is_too_large_and_the_old_one_stays(shared_cluster, d, tmp_path, tool):
    c = shared_cluster
    (tmp_path / "src").write_bytes(bytes(2_000_000))
    c.write(A, f"{d}/f", "old")
    result = c.run(tool.format(f=f"{d}/f"), A, check=False, env={"src": str(tmp_path / "src")})
    assert result.returncode != 0
    assert "File too large" in result.stderr
    assert (c.read(B, f"{d}/f"), version(c, f"{d}/f")) == (b"old", 1)


# ---- fallocate, copy_file_range ----

KEEP_SIZE, PUNCH_HOLE, COLLAPSE, ZERO_RANGE, INSERT = 1, 2, 8, 16, 32


def test_fallocate_grows_a_file_and_zeroes_ranges_in_one_revision_each(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "0123456789")

    def allocate(*arguments):
        c.call(B, lambda path: fallocate(path, *arguments), f"{d}/f")
        return c.read(C, f"{d}/f"), version(c, f"{d}/f")

    assert allocate(0, 0, 12) == (b"0123456789\0\0", 2)
    assert allocate(PUNCH_HOLE | KEEP_SIZE, 2, 3) == (b"01\0\0\x0056789\0\0", 3)
    assert allocate(ZERO_RANGE, 11, 3) == (b"01\0\0\x0056789\0\0\0\0", 4)
    assert allocate(ZERO_RANGE | KEEP_SIZE, 6, 100) == (b"01\0\0\x005\0\0\0\0\0\0\0\0", 5)
    content, last = allocate(KEEP_SIZE, 0, 500)
    assert content == b"01\0\0\x005\0\0\0\0\0\0\0\0"
    for mode in COLLAPSE, INSERT:
        fails(errno.EOPNOTSUPP, allocate, mode, 0, 4096)
    assert version(c, f"{d}/f") == last


def copy_range(source, target, count, at_source, at_target):
    fd_in, fd_out = os.open(source, os.O_RDONLY), os.open(target, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        return os.copy_file_range(fd_in, fd_out, count, at_source, at_target)
    finally:
        os.close(fd_in)
        os.close(fd_out)


def test_copy_file_range_is_one_revision(shared_cluster, d):
    c = shared_cluster
    data = os.urandom(500_000)
    c.write(A, f"{d}/source", data)
    c.write(A, f"{d}/f", b"x" * 10)
    bounded(lambda: copy_range(c.path(B, f"{d}/source"), c.path(B, f"{d}/f"), 500_000, 0, 0))
    assert (c.read(C, f"{d}/f"), version(c, f"{d}/f")) == (data, 2)
    bounded(lambda: copy_range(c.path(B, f"{d}/source"), c.path(B, f"{d}/f"), 5, 100, 3))
    assert c.read(C, f"{d}/f") == data[:3] + data[100:105] + data[8:]
    assert version(c, f"{d}/f") == 3


def test_copying_from_a_view_of_the_past_brings_an_old_value_back(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "old")
    revision = c.revision(A, f"{d}/f")
    c.write(A, f"{d}/f", "newer")
    bounded(lambda: copy_range(c.path(B, f"{d}/f@rev={revision}"), c.path(B, f"{d}/g"), 3, 0, 0))
    assert c.read(C, f"{d}/g") == b"old"
    c.run(f"cp {d}/f@rev={revision} {d}/f", B)
    assert (c.read(C, f"{d}/f"), version(c, f"{d}/f")) == (b"old", 3)


# ---- small things ----

def test_a_write_clears_nothing_but_time(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    c.call(A, lambda path: os.chown(path, 1234, 2345), f"{d}/f")
    c.call(A, lambda path: os.chmod(path, 0o640), f"{d}/f")
    before = c.stat(B, f"{d}/f")
    c.append(C, f"{d}/f", "y")
    after = c.stat(B, f"{d}/f")
    for field in "st_mode", "st_uid", "st_gid", "st_ino", "st_atime_ns", "st_nlink":
        assert getattr(before, field) == getattr(after, field), field
    assert after.st_mtime_ns > before.st_mtime_ns
    assert after.st_ctime_ns > before.st_ctime_ns


def test_what_was_acknowledged_survives_the_death_of_all_nodes(cluster):
    c = cluster
    for n in range(5):
        c.write(n % 3 + 1, f"f{n}", f"value {n}")
    for i in c.nodes():
        c.kill(i)
    for i in c.nodes():
        c.start(i)
    for n in range(5):
        for i in c.nodes():
            assert wait_for(lambda: c.read(i, f"f{n}")) == f"value {n}".encode()


# ---- what is held back, when others come in between ----

def test_a_new_file_whose_directory_another_node_has_removed_fails_in_write(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.mkdir(A, f"{d}/sub")
    fd = h.open(c.path(A, f"{d}/sub/f"), os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        c.call(B, os.rmdir, f"{d}/sub")
    except OSError as error:  # the creation has become visible meanwhile
        assert error.errno == errno.ENOTEMPTY
        h.write(fd, b"x")
        return
    with pytest.raises(OSError) as caught:
        h.write(fd, b"x")
    assert caught.value.errno in (errno.ENOENT, errno.ESTALE)
    assert not c.exists(C, f"{d}/sub")


def test_full_buffers_of_a_file_that_another_node_has_removed_do_not_bring_it_back(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "old")
    fd = h.open(c.path(A, f"{d}/f"), os.O_WRONLY | os.O_TRUNC)
    h.write(fd, BLOCK)
    c.unlink(B, f"{d}/f")
    h.write(fd, BLOCK)
    h.write(fd, b"end")
    h.close(fd)
    for i in c.nodes():
        assert c.listdir(i, d) == []


def test_full_buffers_win_over_what_another_node_wrote_before_the_close(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "old")
    fd = h.open(c.path(A, f"{d}/f"), os.O_WRONLY | os.O_TRUNC)
    h.write(fd, BLOCK)
    c.write(B, f"{d}/f", b"theirs, longer" * 1000)
    h.close(fd)
    assert (c.read(C, f"{d}/f"), version(c, f"{d}/f")) == (BLOCK, 3)


def test_a_change_of_mode_and_time_after_full_buffers_comes_after_them(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    fd = h.open(c.path(A, f"{d}/f"), os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
    h.write(fd, BLOCK)
    h.fchmod(fd, 0o640)
    h.utime(fd, (1, 2))
    h.close(fd)
    s = c.stat(B, f"{d}/f")
    assert (s.st_mode & 0o777, s.st_mtime, s.st_size) == (0o640, 2, 4096)
    assert c.read(C, f"{d}/f") == BLOCK


def test_a_renamed_file_takes_what_was_held_back_along(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "old")
    fd = h.open(c.path(A, f"{d}/tmp"), os.O_CREAT | os.O_WRONLY, 0o644)
    h.write(fd, BLOCK)
    h.rename(c.path(A, f"{d}/tmp"), c.path(A, f"{d}/f"))
    h.write(fd, b"end")
    h.close(fd)
    for i in c.nodes():
        assert c.listdir(i, d) == ["f"]
        assert c.read(i, f"{d}/f") == BLOCK + b"end"


def test_two_descriptors_of_one_process_see_each_others_committed_writes(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    path = c.path(A, f"{d}/f")
    first = h.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    second = h.open(path, os.O_RDWR)
    h.write(first, b"from the first")
    assert h.pread(second, 100, 0) == b"from the first"
    h.pwrite(second, b"FROM", 0)
    assert h.pread(first, 100, 0) == b"FROM the first"
    assert c.read(B, f"{d}/f") == b"FROM the first"


def test_more_than_is_held_back_for_one_user_is_written_at_once(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    half = bytes(500 << 10)
    fds = [h.open(c.path(A, f"{d}/f{n}"), os.O_CREAT | os.O_WRONLY, 0o644) for n in range(20)]
    for fd in fds:
        h.write(fd, half)
        h.write(fd, half)
    # 16 MiB may wait. These are nearly 20: the last ones did not.
    assert c.stat(B, f"{d}/f19").st_size == 1000 << 10
    for fd in fds:
        h.close(fd)
    for n in range(20):
        assert c.stat(B, f"{d}/f{n}").st_size == 1000 << 10


def test_a_stat_of_the_writer_itself_shows_what_it_has_written(shared_cluster, hand, d):
    """Programs look at the size they have written so far: tar, dd, cp --sparse."""
    c, h = shared_cluster, hand()
    fd = h.open(c.path(A, f"{d}/f"), os.O_CREAT | os.O_WRONLY, 0o644)
    h.write(fd, BLOCK)
    h.write(fd, BLOCK)
    assert h.lseek(fd, 0, os.SEEK_CUR) == 8192
    assert h.lseek(fd, 0, os.SEEK_END) == 8192
    assert h.fstat(fd).st_size == 8192
    assert c.stat(A, f"{d}/f").st_size == 0
    h.write(fd, b"end")
    h.close(fd)
    assert c.read(B, f"{d}/f") == 2 * BLOCK + b"end"


def test_a_writer_that_seeks_to_the_end_finds_the_end_of_its_own_content(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "the old value")
    fd = h.open(c.path(A, f"{d}/f"), os.O_WRONLY | os.O_TRUNC)
    assert h.lseek(fd, 0, os.SEEK_END) == 0
    h.write(fd, BLOCK)
    assert h.lseek(fd, 0, os.SEEK_END) == 4096
    h.write(fd, b"end")
    assert h.lseek(fd, 0, os.SEEK_END) == 4099
    h.close(fd)
    assert c.read(B, f"{d}/f") == BLOCK + b"end"
    fd = h.open(c.path(A, f"{d}/f"), os.O_RDWR)
    h.ftruncate(fd, 0)
    assert h.lseek(fd, 0, os.SEEK_END) == 0
    h.write(fd, b"new")
    assert c.read(C, f"{d}/f") == b"new"
