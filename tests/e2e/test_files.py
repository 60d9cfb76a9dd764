"""Files, directories and links on three mounts: what is read, names, attributes, permissions, and how each mistake is refused."""

import ctypes
import errno
import mmap
import os
import socket
import stat
import subprocess
import tempfile
import time

import pytest

from hands import as_user, in_parallel
from keel import bounded, wait_for

A, B, C = 1, 2, 3
USER, OTHER = 65534, 65533
LIMIT = 1020 << 10
NOREPLACE, EXCHANGE = 1, 2


def fails(code, call, *arguments, **options):
    with pytest.raises(OSError) as caught:
        call(*arguments, **options)
    assert caught.value.errno == code, caught.value


def version(c, name, node=B):
    return int(c.xattr(node, name, "user.keel.version"))


def revision_of_tree(c, node=A):
    return int(c.status(node)["revision"])


def renameat2(old, new, flags):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def read_all(path):
    with open(path, "rb", buffering=0) as file:
        return b"".join(iter(lambda: file.read(1 << 20), b""))


# ---- reading ----

@pytest.mark.sanitizer
def test_every_kind_of_read_on_every_node_sees_what_was_done_before_it(shared_cluster, d):
    c = shared_cluster
    for n in range(12):
        writer = n % 3 + 1
        c.write(writer, f"{d}/f{n}", "v" * n)
        c.mkdir(writer, f"{d}/d{n}")
        c.call(writer, lambda path: os.symlink(f"target-{n}", path), f"{d}/l{n}")
        for i in c.nodes():
            assert c.stat(i, f"{d}/f{n}").st_size == n
            assert c.read(i, f"{d}/f{n}") == b"v" * n
            assert len(c.listdir(i, d)) == 3
            assert c.listdir(i, f"{d}/d{n}") == []
            assert c.call(i, os.readlink, f"{d}/l{n}") == f"target-{n}"
        c.unlink(writer % 3 + 1, f"{d}/f{n}")
        c.call(writer, os.rmdir, f"{d}/d{n}")
        c.unlink(writer, f"{d}/l{n}")
        for i in c.nodes():
            assert c.listdir(i, d) == []
            fails(errno.ENOENT, c.read, i, f"{d}/f{n}")


def test_a_value_handed_from_node_to_node_is_never_old(shared_cluster, d):
    """Each in turn adds one to a number it reads: a stale read would lose a step."""
    c = shared_cluster
    c.write(A, f"{d}/n", "0")
    for n in range(60):
        i = n * 7 % 3 + 1
        value = int(c.read(i, f"{d}/n"))
        assert value == n
        c.write(i, f"{d}/n", str(value + 1))


def test_a_run_of_reads_is_of_one_revision(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    old, new = b"o" * 10_000, b"n" * 12_000
    c.write(A, f"{d}/f", old)
    fd = h.open(c.path(B, f"{d}/f"), os.O_RDONLY)
    assert h.read(fd, 3000) == old[:3000]
    c.write(A, f"{d}/f", new)
    c.write(C, f"{d}/f", "short")
    assert h.read(fd, 3000) + h.read(fd, 8000) == old[3000:]
    h.lseek(fd, 0, os.SEEK_SET)
    assert h.read(fd, 3000) == b"short"
    c.write(A, f"{d}/f", new)
    assert h.pread(fd, 100, 3) == new[:100]


def test_a_program_that_reads_in_pieces_sees_one_value_while_others_write(shared_cluster, d):
    c = shared_cluster
    values = [bytes([n]) * (50_000 + n) for n in range(65, 85)]
    c.write(A, f"{d}/f", values[0])

    def writer(i):
        for value in values:
            fd = os.open(c.path(i, f"{d}/f"), os.O_WRONLY | os.O_TRUNC)
            os.write(fd, value)
            os.close(fd)

    def reader(i):
        for _ in range(40):
            with open(c.path(i, f"{d}/f"), "rb", buffering=0) as file:
                value = b"".join(iter(lambda: file.read(7_001), b""))
            assert value in values
        return True

    in_parallel([*(lambda i=i: writer(i) for i in (A, B)), *(lambda i=i: reader(i) for i in c.nodes())])


def test_after_the_end_of_the_file_a_reader_sees_what_is_appended(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/log", "one\n")
    fd = h.open(c.path(B, f"{d}/log"), os.O_RDONLY)
    assert h.read(fd, 100) == b"one\n"
    assert h.read(fd, 100) == b""
    for n in range(5):
        c.append(n % 3 + 1, f"{d}/log", f"{n}\n")
        assert h.read(fd, 100) == f"{n}\n".encode()
        assert h.read(fd, 100) == b""


def test_tail_follows_what_another_node_appends(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/log", "first\n")
    with tempfile.TemporaryFile() as out:
        tail = subprocess.Popen(["tail", "-f", "-s", "0.05", c.path(B, f"{d}/log")], stdout=out)
        try:
            wait_for(lambda: os.pread(out.fileno(), 1000, 0) == b"first\n")
            c.append(C, f"{d}/log", "second\n")
            wait_for(lambda: os.pread(out.fileno(), 1000, 0) == b"first\nsecond\n")
            c.append(A, f"{d}/log", "third\n")
            wait_for(lambda: os.pread(out.fileno(), 1000, 0) == b"first\nsecond\nthird\n")
        finally:
            tail.kill()
            tail.wait(20)


def test_a_handle_reads_its_own_writes(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "0123456789")
    fd = h.open(c.path(A, f"{d}/f"), os.O_RDWR)
    assert h.read(fd, 4) == b"0123"
    h.pwrite(fd, b"xyz", 5)
    assert h.read(fd, 100) == b"4xyz89"
    fd2 = h.open(c.path(A, f"{d}/f"), os.O_RDWR | os.O_TRUNC)
    assert h.pread(fd2, 100, 0) == b""
    h.write(fd2, b"ab")
    assert h.pread(fd2, 100, 0) == b"ab"
    assert h.pread(fd, 100, 0) == b"ab"


@pytest.mark.sanitizer
def test_an_unlinked_file_that_is_open_stays_readable_and_writable(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "content")
    fds = [h.open(c.path(i, f"{d}/f"), os.O_RDWR) for i in (A, B)]
    c.unlink(C, f"{d}/f")
    for i in c.nodes():
        assert c.listdir(i, d) == []
    for fd in fds:
        assert h.fstat(fd).st_nlink == 0
        assert h.pread(fd, 100, 0) == b"content"
        h.pwrite(fd, b"CON", 0)
        h.pwrite(fd, b"end", 9)
        assert h.pread(fd, 100, 0) == b"CONtent\0\0end"
        h.ftruncate(fd, 2)
        assert (h.fstat(fd).st_size, h.pread(fd, 100, 0)) == (2, b"CO")
        h.fchmod(fd, 0o600)
        assert h.fstat(fd).st_mode & 0o777 == 0o600
        h.fsync(fd)
    before = revision_of_tree(c)
    c.write(B, f"{d}/f", "another")
    assert h.pread(fds[0], 100, 0) == b"CO"
    for fd in fds:
        h.close(fd)
    assert c.read(C, f"{d}/f") == b"another"
    assert revision_of_tree(c) == before + 1


def test_a_file_replaced_by_a_rename_stays_open_with_its_old_content(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "old")
    fd = h.open(c.path(B, f"{d}/f"), os.O_RDONLY)
    c.write(A, f"{d}/new", "new")
    c.rename(A, f"{d}/new", f"{d}/f")
    assert h.read(fd, 100) == b"old"
    assert c.read(B, f"{d}/f") == b"new"


def test_a_renamed_file_stays_open_under_its_new_name(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "x")
    fd = h.open(c.path(B, f"{d}/f"), os.O_WRONLY | os.O_APPEND)
    c.rename(A, f"{d}/f", f"{d}/g")
    h.write(fd, b"y")
    assert c.read(C, f"{d}/g") == b"xy"
    assert c.listdir(C, d) == ["g"]


def test_a_private_mapping_shows_the_content_and_a_shared_one_is_refused(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", b"m" * 10_000)

    def private(path):
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as m:
            return m[:]

    def shared(path):
        with open(path, "r+b") as file:
            mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED).close()

    assert c.call(B, private, f"{d}/f") == b"m" * 10_000
    fails(errno.ENODEV, c.call, B, shared, f"{d}/f")


def test_a_program_can_be_run_from_the_mount(shared_cluster, d):
    c = shared_cluster
    c.run(f"cp /bin/true {d}/program && printf '#!/bin/sh\\necho hello\\n' > {d}/script && chmod 755 {d}/script", A)
    c.run(f"{d}/program", B)
    assert c.run(f"{d}/script", C).stdout == "hello\n"


def test_there_are_no_holes(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", bytes(9000))
    fd = h.open(c.path(B, f"{d}/f"), os.O_RDONLY)
    assert h.lseek(fd, 0, os.SEEK_HOLE) == 9000
    assert h.lseek(fd, 10, os.SEEK_DATA) == 10
    assert h.lseek(fd, 0, os.SEEK_END) == 9000


def test_seeking_to_the_end_finds_what_another_node_has_appended(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "12345")
    fd = h.open(c.path(B, f"{d}/f"), os.O_RDONLY)
    c.append(C, f"{d}/f", "678")
    assert h.lseek(fd, 0, os.SEEK_END) == 8
    assert h.fstat(fd).st_size == 8


# ---- rename ----

@pytest.mark.sanitizer
def test_a_name_that_is_replaced_by_rename_is_never_missing_and_never_mixed(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "0")

    def writer():
        for n in range(1, 61):
            path = c.path(A, f"{d}/tmp")
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(fd, str(n).encode())
            os.close(fd)
            os.rename(path, c.path(A, f"{d}/f"))

    def reader(i):
        seen = [0]
        while seen[-1] != 60:
            seen.append(int(read_all(c.path(i, f"{d}/f"))))
        return seen

    _, *readers = in_parallel([writer, *(lambda i=i: reader(i) for i in c.nodes())])
    for seen in readers:
        assert seen == sorted(seen)
    assert c.listdir(B, d) == ["f"]


def test_a_rename_onto_a_file_is_its_next_version(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "old")
    created = int(c.xattr(B, f"{d}/f", "user.keel.create_revision"))
    c.write(B, f"{d}/tmp", "new")
    inode, before = c.stat(C, f"{d}/tmp").st_ino, revision_of_tree(c)
    c.rename(C, f"{d}/tmp", f"{d}/f")
    assert revision_of_tree(c) == before + 1
    for i in c.nodes():
        assert c.read(i, f"{d}/f") == b"new"
        assert c.stat(i, f"{d}/f").st_ino == inode
        assert version(c, f"{d}/f", i) == 2
        assert int(c.xattr(i, f"{d}/f", "user.keel.create_revision")) == created
        assert c.revision(i, f"{d}/f") == before + 1
    line = c.read(A, f"{d}/tmp@log").decode().splitlines()[0]
    assert line.startswith(f"revision={before + 1} version=0 type=delete size=0 mode=0000 ")


def test_a_rename_to_a_new_name_begins_a_new_key(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "1")
    c.write(A, f"{d}/f", "2")
    inode = c.stat(A, f"{d}/f").st_ino
    c.rename(B, f"{d}/f", f"{d}/g")
    assert version(c, f"{d}/g") == 1
    assert int(c.xattr(C, f"{d}/g", "user.keel.create_revision")) == c.revision(C, f"{d}/g")
    assert c.stat(C, f"{d}/g").st_ino == inode
    assert not c.exists(C, f"{d}/f")


def test_rename_without_replacing_is_decided_by_the_cluster(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "f")
    c.write(A, f"{d}/g", "g")

    def move(i, old, new, flags):
        bounded(lambda: renameat2(c.path(i, f"{d}/{old}"), c.path(i, f"{d}/{new}"), flags))

    fails(errno.EEXIST, move, B, "f", "g", NOREPLACE)
    assert c.read(C, f"{d}/g") == b"g"
    move(B, "f", "h", NOREPLACE)
    assert c.listdir(C, d) == ["g", "h"]
    fails(errno.EINVAL, move, B, "g", "h", EXCHANGE)
    assert (c.read(C, f"{d}/g"), c.read(C, f"{d}/h")) == (b"g", b"f")


def test_exactly_one_of_many_renames_without_replacing_succeeds(shared_cluster, d):
    c = shared_cluster

    def move(i, n):
        open(c.path(i, f"{d}/from-{i}-{n}"), "w").close()
        try:
            renameat2(c.path(i, f"{d}/from-{i}-{n}"), c.path(i, f"{d}/to-{n}"), NOREPLACE)
        except FileExistsError:
            return False
        return True

    results = in_parallel([lambda i=i: [move(i, n) for n in range(15)] for i in c.nodes()])
    assert [sum(won) for won in zip(*results)] == [1] * 15


def test_a_directory_is_not_renamed_but_mv_copies_it(shared_cluster, d):
    c = shared_cluster
    c.run(f"mkdir -p {d}/from/sub && echo 1 > {d}/from/f && echo 2 > {d}/from/sub/g && ln -s f {d}/from/l", A)
    c.call(A, lambda path: os.chmod(path, 0o640), f"{d}/from/f")
    fails(errno.EXDEV, c.rename, B, f"{d}/from", f"{d}/to")
    assert c.read(B, f"{d}/from/f") == b"1\n"
    c.run(f"mv {d}/from {d}/to", B)
    assert c.listdir(C, d) == ["to"]
    assert c.read(C, f"{d}/to/f") == b"1\n"
    assert c.read(C, f"{d}/to/sub/g") == b"2\n"
    assert c.call(C, os.readlink, f"{d}/to/l") == "f"
    assert c.stat(C, f"{d}/to/f").st_mode & 0o777 == 0o640


def test_impossible_renames_are_refused_as_anywhere(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "f")
    c.mkdir(A, f"{d}/sub")
    fails(errno.EISDIR, c.rename, B, f"{d}/f", f"{d}/sub")
    fails(errno.ENOENT, c.rename, B, f"{d}/missing", f"{d}/g")
    fails(errno.ENOENT, c.rename, B, f"{d}/f", f"{d}/missing/g")
    fails(errno.ENOTDIR, c.rename, B, f"{d}/f", f"{d}/f/g")
    fails(errno.ENAMETOOLONG, c.rename, B, f"{d}/f", f"{d}/" + "n" * 256)
    before = revision_of_tree(c)
    c.rename(B, f"{d}/f", f"{d}/f")
    assert revision_of_tree(c) == before
    c.rename(B, f"{d}/f", f"{d}/sub/f")
    assert c.read(C, f"{d}/sub/f") == b"f"


# ---- what does not exist here ----

def test_hard_links_and_special_files_are_refused(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    fails(errno.EPERM, bounded, lambda: os.link(c.path(B, f"{d}/f"), c.path(B, f"{d}/g")))
    fails(errno.EPERM, c.call, B, os.mkfifo, f"{d}/fifo")
    fails(errno.EPERM, c.call, B, lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3)), f"{d}/dev")
    fails(errno.EPERM, c.call, B, lambda path: os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(7, 0)), f"{d}/blk")

    def bind(path):
        os.chdir(os.path.dirname(path))
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(os.path.basename(path))

    fails(errno.EPERM, c.call, B, bind, f"{d}/socket")
    fails(errno.EOPNOTSUPP, c.call, B, lambda path: os.open(path, os.O_TMPFILE | os.O_RDWR), d)
    c.call(B, lambda path: os.mknod(path, stat.S_IFREG | 0o600), f"{d}/regular")
    assert c.listdir(C, d) == ["f", "regular"]


def test_attributes_of_ones_own_are_refused(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    for name in "user.mine", "trusted.mine", "security.mine":
        fails(errno.EOPNOTSUPP, c.call, B, lambda path: os.setxattr(path, name, b"v"), f"{d}/f")
    for name in "user.mine", "trusted.mine":
        with pytest.raises(OSError) as caught:
            c.call(B, lambda path: os.getxattr(path, name), f"{d}/f")
        assert caught.value.errno in (errno.ENODATA, errno.EOPNOTSUPP)
    assert c.call(B, os.listxattr, f"{d}/f") == []
    assert version(c, f"{d}/f") == 1


# ---- names ----

@pytest.mark.sanitizer
def test_names_have_at_most_255_bytes(shared_cluster, d):
    c = shared_cluster
    longest = "n" * 255
    c.write(A, f"{d}/{longest}", "x")
    assert c.listdir(B, d) == [longest]
    assert c.read(C, f"{d}/{longest}") == b"x"
    c.unlink(C, f"{d}/{longest}")
    for make in (
        lambda path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY)), os.mkdir,
        lambda path: os.symlink("x", path), os.lstat,
    ):
        fails(errno.ENAMETOOLONG, c.call, B, make, f"{d}/{longest}n")
    fails(errno.ENAMETOOLONG, c.call, B, os.mkdir, d + "/" + "ä" * 128)
    c.mkdir(B, d + "/" + "ä" * 127)
    assert c.listdir(C, d) == ["ä" * 127]


@pytest.mark.parametrize("name", [
    b"\xff\xfe not utf-8", b"new\nline", b"tab\tquote\"back\\slash", b" ", b"-rf", b"*", b"...", "ünïcödé ☃".encode(),
    b"\x01\x7f", b"CON", b"a b c", b"'", b"%s%n", b".hidden", b"~"])
def test_any_bytes_but_slash_and_nul_make_a_name(shared_cluster, d, name):
    c = shared_cluster
    path = f"{d}/" + os.fsdecode(name)
    c.write(A, path, "x")
    assert c.listdir(B, d) == [os.fsdecode(name)]
    assert c.read(C, path) == b"x"
    assert c.read(C, path + "@log").count(b"\n") == 1
    c.rename(B, path, f"{d}/plain")
    c.unlink(A, f"{d}/plain")
    assert c.listdir(C, d) == []


def test_names_that_differ_in_case_or_normalization_are_different(shared_cluster, d):
    c = shared_cluster
    names = sorted(["a", "A", "é", "e\u0301"])
    for name in names:
        c.write(A, f"{d}/{name}", name)
    assert c.listdir(B, d) == names
    for name in names:
        assert c.read(C, f"{d}/{name}").decode() == name


def test_a_path_may_be_deep(shared_cluster, d):
    c = shared_cluster

    def descend(path):
        os.chdir(path)
        for _ in range(300):
            os.mkdir("d")
            os.chdir("d")
        with open("leaf", "w") as file:
            file.write("deep")

    c.call(A, descend, d, timeout=60)
    assert c.read(B, d + "/d" * 300 + "/leaf") == b"deep"
    c.run(f"rm -rf {d}/d", C, timeout=60)
    assert c.listdir(A, d) == []


def test_a_path_below_the_mount_has_at_most_4095_bytes(shared_cluster, d):
    c = shared_cluster

    def descend(path):
        used = len(os.path.basename(path))
        os.chdir(path)
        while used + 201 < 4000:
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
            used += 201
        left = 4095 - used - 1
        if left > 255:
            os.mkdir("e" * 100)
            os.chdir("e" * 100)
            left -= 101
        with open("f" * left, "w") as file:
            file.write("x")
        try:
            open("f" * (left + 1), "w").close()
        except OSError as error:
            return error.errno
        return 0

    assert c.call(A, descend, d, timeout=60) == errno.ENAMETOOLONG
    c.run(f"rm -rf {d}/*", B, timeout=60)


def test_mistakes_with_names_are_refused_as_anywhere(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    c.mkdir(A, f"{d}/full")
    c.write(A, f"{d}/full/f", "x")
    for code, call, name in [
        (errno.ENOENT, os.stat, "missing"),
        (errno.ENOENT, os.unlink, "missing"),
        (errno.ENOENT, os.rmdir, "missing"),
        (errno.ENOENT, os.mkdir, "missing/d"),
        (errno.ENOENT, lambda path: os.open(path, os.O_CREAT | os.O_WRONLY), "missing/f"),
        (errno.EEXIST, os.mkdir, "full"),
        (errno.EEXIST, os.mkdir, "f"),
        (errno.EEXIST, lambda path: os.symlink("x", path), "f"),
        (errno.ENOTEMPTY, os.rmdir, "full"),
        (errno.ENOTDIR, os.rmdir, "f"),
        (errno.ENOTDIR, os.listdir, "f"),
        (errno.ENOTDIR, os.stat, "f/g"),
        (errno.ENOTDIR, os.stat, "f/"),
        (errno.EISDIR, os.unlink, "full"),
        (errno.EISDIR, lambda path: os.open(path, os.O_WRONLY), "full"),
        (errno.EISDIR, lambda path: os.truncate(path, 0), "full"),
        (errno.ENOTDIR, lambda path: os.open(path, os.O_DIRECTORY), "f"),
        (errno.EINVAL, lambda path: os.truncate(path, -1), "f"),
    ]:
        before = revision_of_tree(c)
        fails(code, c.call, B, call, f"{d}/{name}")
        assert revision_of_tree(c) == before


def test_what_one_node_removes_and_makes_anew_is_new_for_the_others(shared_cluster, d):
    c = shared_cluster
    for n in range(5):
        c.write(A, f"{d}/x", "file")
        assert c.read(B, f"{d}/x") == b"file"
        first = c.stat(B, f"{d}/x").st_ino
        c.unlink(A, f"{d}/x")
        c.mkdir(A, f"{d}/x")
        assert c.listdir(B, f"{d}/x") == []
        c.write(B, f"{d}/x/inside", "y")
        c.run(f"rm -r {d}/x && ln -s target {d}/x", C)
        assert c.call(B, os.readlink, f"{d}/x") == "target"
        assert c.stat(B, f"{d}/x").st_ino != first
        c.unlink(B, f"{d}/x")


def test_a_working_directory_that_another_node_removes_is_gone(shared_cluster, hand, d):
    c, h = shared_cluster, hand()

    def gone(*arguments):
        with pytest.raises(OSError) as caught:
            h(*arguments)
        assert caught.value.errno in (errno.ENOENT, errno.ESTALE)

    c.mkdir(A, f"{d}/sub")
    h.chdir(c.path(B, f"{d}/sub"))
    c.call(C, os.rmdir, f"{d}/sub")
    gone("listdir", ".")
    gone("mkdir", "x")
    gone("open", "f", os.O_CREAT | os.O_WRONLY)
    c.mkdir(C, f"{d}/sub")
    gone("mkdir", "x")
    assert c.listdir(A, f"{d}/sub") == []


# ---- directories ----

def test_a_large_directory_is_listed_whole(shared_cluster, d):
    c = shared_cluster
    names = [f"file-{n:04}" for n in range(2000)]

    def fill(i):
        for name in names[i - 1::3]:
            os.symlink("x", c.path(i, f"{d}/{name}"))

    in_parallel([lambda i=i: fill(i) for i in c.nodes()])
    for i in c.nodes():
        listed = c.call(i, os.listdir, d)
        assert len(listed) == 2000
        assert sorted(listed) == names
    c.run(f"rm -rf {d}/file-*", B, timeout=60)
    assert c.listdir(C, d) == []


def test_a_listing_shows_the_names_of_one_revision(shared_cluster, d):
    c = shared_cluster
    for n in range(300):
        c.call(A, lambda path: os.symlink("x", path), f"{d}/fixed-{n:03}") if n < 3 else None
    c.run(f"cd {d} && for n in $(seq 300); do echo; done | awk '{{print \"many-\" NR}}' | xargs -n 50 touch", A, timeout=60)
    c.call(A, lambda path: os.symlink("x", path), f"{d}/a")

    def mover():
        for _ in range(60):
            os.rename(c.path(A, f"{d}/a"), c.path(A, f"{d}/z"))
            os.rename(c.path(A, f"{d}/z"), c.path(A, f"{d}/a"))

    def lister(i):
        for _ in range(60):
            names = os.listdir(c.path(i, d))
            assert len(names) == len(set(names)) == 304
            assert ("a" in names) != ("z" in names)

    in_parallel([mover, *(lambda i=i: lister(i) for i in c.nodes())])


def test_a_listing_is_as_of_opendir_and_a_rewound_one_is_new(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/one", "")
    fd = h.open(c.path(B, d), os.O_RDONLY | os.O_DIRECTORY)
    c.write(A, f"{d}/two", "")
    assert h.listdir(fd) in (["one"], ["one", "two"], ["two", "one"])
    c.write(C, f"{d}/three", "")
    assert sorted(h.listdir(fd)) == ["one", "three", "two"]


def test_a_directory_that_is_emptied_while_it_is_listed_is_emptied(shared_cluster, d):
    c = shared_cluster
    c.run(f"cd {d} && touch $(seq 400)", A, timeout=60)

    def empty(path):
        with os.scandir(path) as entries:
            for entry in entries:
                os.unlink(entry.path)

    c.call(B, empty, d, timeout=60)
    assert c.listdir(C, d) == []


def test_a_listing_names_kind_and_inode(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    c.mkdir(A, f"{d}/d")
    c.call(A, lambda path: os.symlink("f", path), f"{d}/l")

    def entries(path):
        with os.scandir(path) as found:
            return {e.name: (e.inode(), e.is_file(follow_symlinks=False), e.is_dir(follow_symlinks=False), e.is_symlink())
                    for e in found}

    found = c.call(B, entries, d)
    assert found == {
        "f": (c.stat(A, f"{d}/f").st_ino, True, False, False),
        "d": (c.stat(A, f"{d}/d").st_ino, False, True, False),
        "l": (c.stat(A, f"{d}/l").st_ino, False, False, True),
    }
    raw = c.run(f"ls -a1 {d}", C).stdout.split()
    assert sorted(raw) == [".", "..", "d", "f", "l"]


def test_many_processes_make_the_same_tree_at_once(shared_cluster, d):
    c = shared_cluster
    in_parallel([lambda i=i: os.makedirs(c.path(i, f"{d}/a/b/c/d/e"), exist_ok=True)
                 for i in c.nodes() for _ in range(3)])
    assert c.listdir(A, f"{d}/a/b/c/d") == ["e"]


def test_link_count_and_times_of_a_directory_follow_what_is_in_it(shared_cluster, d):
    c = shared_cluster
    assert c.stat(A, d).st_nlink == 2
    before, revision = c.stat(A, d).st_mtime_ns, c.revision(A, d)
    c.mkdir(B, f"{d}/s1")
    c.mkdir(C, f"{d}/s2")
    c.write(C, f"{d}/f", "x")
    # Attributes of a directory may be 50 ms old.
    wait_for(lambda: c.stat(A, d).st_nlink == 4, 5)
    after = c.stat(A, d)
    assert after.st_mtime_ns > before and after.st_ctime_ns >= after.st_mtime_ns
    assert c.revision(A, d) == revision
    c.call(A, os.rmdir, f"{d}/s1")
    wait_for(lambda: c.stat(B, d).st_nlink == 3, 5)
    wait_for(lambda: c.stat(B, d).st_mtime_ns > after.st_mtime_ns, 5)
    quiet = c.stat(B, d).st_mtime_ns
    c.append(C, f"{d}/f", "y")
    time.sleep(0.06)
    assert c.stat(B, d).st_mtime_ns == quiet


def test_the_root_is_there_for_good(shared_cluster):
    c = shared_cluster
    root = c.stat(A, "")
    assert (root.st_ino, root.st_mode) == (1, stat.S_IFDIR | 0o755)
    fails(errno.EBUSY, c.call, B, os.rmdir, "")
    with pytest.raises(OSError):
        c.call(B, lambda path: os.rename(path, path + "-other"), "")
    c.call(B, lambda path: os.chmod(path, 0o751), "")
    wait_for(lambda: c.stat(C, "").st_mode & 0o7777 == 0o751, 5)
    c.call(C, lambda path: os.chmod(path, 0o755), "")
    wait_for(lambda: c.stat(A, "").st_mode & 0o7777 == 0o755, 5)


# ---- symbolic links ----

@pytest.mark.sanitizer
def test_symbolic_links_work_across_nodes(shared_cluster, d):
    c = shared_cluster
    c.mkdir(A, f"{d}/real")
    c.write(A, f"{d}/real/f", "content")
    for target, name in [("real/f", "l"), ("real", "dir"), ("l", "chain"), ("nowhere", "dangling"), ("loop", "loop")]:
        c.call(A, lambda path: os.symlink(target, path), f"{d}/{name}")
    for i in c.nodes():
        assert c.read(i, f"{d}/l") == c.read(i, f"{d}/chain") == c.read(i, f"{d}/dir/f") == b"content"
        assert c.call(i, os.readlink, f"{d}/dangling") == "nowhere"
        fails(errno.ENOENT, c.read, i, f"{d}/dangling")
        fails(errno.ELOOP, c.read, i, f"{d}/loop")
        link = c.stat(i, f"{d}/l")
        assert (stat.S_ISLNK(link.st_mode), link.st_mode & 0o777, link.st_size) == (True, 0o777, 6)
    c.write(B, f"{d}/dangling", "now there")
    assert c.read(C, f"{d}/nowhere") == b"now there"
    fails(errno.ELOOP, c.call, C, lambda path: os.open(path, os.O_RDONLY | os.O_NOFOLLOW), f"{d}/l")


def test_a_link_is_switched_atomically(shared_cluster, d):
    c = shared_cluster
    for n in range(3):
        c.write(A, f"{d}/v{n}", str(n))
    c.run(f"ln -sfn v0 {d}/current", A)

    def switch():
        for n in range(1, 40):
            subprocess.run(["ln", "-sfn", f"v{n % 3}", c.path(A, f"{d}/current")], check=True)
        open(c.path(A, f"{d}/done"), "w").close()

    def reader(i):
        while not os.path.exists(c.path(i, f"{d}/done")):
            assert os.readlink(c.path(i, f"{d}/current")) in ("v0", "v1", "v2")
            assert read_all(c.path(i, f"{d}/current")) in (b"0", b"1", b"2")

    in_parallel([switch, *(lambda i=i: reader(i) for i in c.nodes())])
    assert c.call(B, os.readlink, f"{d}/current") == "v0"


def test_a_target_has_at_most_4095_bytes(shared_cluster, d):
    c = shared_cluster
    target = "/".join(["t" * 100] * 41)[:4095]
    assert len(target) == 4095
    c.call(A, lambda path: os.symlink(target, path), f"{d}/l")
    assert c.call(B, os.readlink, f"{d}/l") == target
    assert c.stat(C, f"{d}/l").st_size == 4095
    fails(errno.ENAMETOOLONG, c.call, A, lambda path: os.symlink(target + "x", path), f"{d}/m")
    fails(errno.ENOENT, c.call, A, lambda path: os.symlink("", path), f"{d}/m")


# ---- attributes ----

@pytest.mark.sanitizer
def test_mode_owner_and_times_are_seen_on_every_node_at_once(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    c.call(A, lambda path: os.chmod(path, 0o1640), f"{d}/f")
    c.call(B, lambda path: os.chown(path, 1234, 2345), f"{d}/f")
    atime, mtime = 1_111_111_111_111_111_111, 1_222_222_222_222_222_222
    c.call(C, lambda path: os.utime(path, ns=(atime, mtime)), f"{d}/f")
    for i in c.nodes():
        s = c.stat(i, f"{d}/f")
        assert s.st_mode == stat.S_IFREG | 0o1640
        assert (s.st_uid, s.st_gid) == (1234, 2345)
        assert (s.st_atime_ns, s.st_mtime_ns) == (atime, mtime)
    assert version(c, f"{d}/f") == 4
    assert c.read(A, f"{d}/f") == b"x"
    assert c.stat(A, f"{d}/f").st_atime_ns == atime


def test_times_before_1970_and_far_ahead_are_kept(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    for ns in -1_000_000_001, 0, 7_000_000_000_123_456_789:
        c.call(A, lambda path: os.utime(path, ns=(ns, ns)), f"{d}/f")
        assert (c.stat(B, f"{d}/f").st_mtime_ns, c.stat(C, f"{d}/f").st_atime_ns) == (ns, ns)


def test_touch_sets_the_time_of_now(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    c.call(A, lambda path: os.utime(path, (5, 5)), f"{d}/f")
    before = time.time()
    c.run(f"touch {d}/f", B)
    s = c.stat(C, f"{d}/f")
    assert before - 1 < s.st_mtime < time.time() + 1
    assert c.read(A, f"{d}/f") == b"x"


def test_an_attribute_change_that_changes_nothing_is_no_revision(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    c.call(A, lambda path: os.chmod(path, 0o600), f"{d}/f")
    c.call(A, lambda path: os.chown(path, 5, 6), f"{d}/f")
    before = revision_of_tree(c)
    c.call(B, lambda path: os.chmod(path, 0o600), f"{d}/f")
    c.call(B, lambda path: os.chown(path, 5, 6), f"{d}/f")
    c.call(B, lambda path: os.chown(path, -1, -1), f"{d}/f")
    c.call(B, lambda path: os.truncate(path, 1), f"{d}/f")
    assert revision_of_tree(c) == before
    assert version(c, f"{d}/f") == 3


def test_the_owner_of_a_link_itself_can_be_changed(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    c.call(A, lambda path: os.symlink("f", path), f"{d}/l")
    c.call(B, lambda path: os.lchown(path, 77, 78), f"{d}/l")
    assert (c.stat(C, f"{d}/l").st_uid, c.stat(C, f"{d}/l").st_gid) == (77, 78)
    assert c.stat(C, f"{d}/f").st_uid == 0
    c.call(B, lambda path: os.utime(path, (9, 9), follow_symlinks=False), f"{d}/l")
    assert c.stat(C, f"{d}/l").st_mtime == 9


def test_the_inode_number_is_the_same_everywhere_and_kept_over_rename(shared_cluster, d):
    c = shared_cluster
    seen = set()
    for n in range(5):
        c.write(n % 3 + 1, f"{d}/f", "x")
        numbers = {c.stat(i, f"{d}/f").st_ino for i in c.nodes()}
        assert len(numbers) == 1 and not numbers & seen
        c.rename(A, f"{d}/f", f"{d}/g")
        assert {c.stat(i, f"{d}/g").st_ino for i in c.nodes()} == numbers
        c.unlink(B, f"{d}/g")
        seen |= numbers


def test_sizes_and_blocks(shared_cluster, d):
    c = shared_cluster
    for size, blocks in [(0, 0), (1, 1), (512, 1), (513, 2), (LIMIT, 2040)]:
        c.write(A, f"{d}/f", b"x" * size)
        s = c.stat(B, f"{d}/f")
        assert (s.st_size, s.st_blocks, s.st_blksize, s.st_nlink) == (size, blocks, 131072, 1)


def test_the_change_time_of_a_file_always_moves_on(shared_cluster, d):
    c = shared_cluster
    last = 0
    for n in range(15):
        c.write(n % 3 + 1, f"{d}/f", str(n))
        now = c.stat((n + 1) % 3 + 1, f"{d}/f").st_ctime_ns
        assert now >= last
        last = now


def test_df_shows_the_quota_and_what_is_used(shared_cluster, d):
    c = shared_cluster
    v = c.call(B, os.statvfs, d)
    assert (v.f_bsize, v.f_frsize, v.f_blocks, v.f_namemax) == (4096, 4096, (2 << 30) // 4096, 255)
    assert v.f_files == 1048576
    assert 0 < v.f_bfree < v.f_blocks and v.f_bavail == v.f_bfree
    used = int(c.status(B)["quota_used"])
    assert abs((v.f_blocks - v.f_bfree) * 4096 - used) <= 8192
    c.write(A, f"{d}/f", b"x" * 1_000_000)
    w = c.call(B, os.statvfs, d)
    assert 240 <= v.f_bfree - w.f_bfree <= 260
    assert v.f_ffree - w.f_ffree == 1
    assert "keelfs" in c.run("df -h .", C).stdout


# ---- permissions ----

def user(c, i, function, name="", uid=USER):
    return c.call(i, lambda path: as_user(uid, function, path), name)


@pytest.mark.sanitizer
def test_permissions_are_enforced_on_every_node(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/secret", "s")
    c.call(A, lambda path: os.chmod(path, 0o600), f"{d}/secret")
    c.write(A, f"{d}/public", "p")
    c.mkdir(A, f"{d}/closed")
    c.write(A, f"{d}/closed/f", "x")
    c.call(A, lambda path: os.chmod(path, 0o700), f"{d}/closed")
    c.mkdir(A, f"{d}/readonly")
    time.sleep(0.06)
    for i in c.nodes():
        fails(errno.EACCES, user, c, i, read_all, f"{d}/secret")
        assert user(c, i, read_all, f"{d}/public") == b"p"
        for code, function, name in [
            (errno.EACCES, lambda path: os.open(path, os.O_WRONLY), "public"),
            (errno.EACCES, os.listdir, "closed"),
            (errno.EACCES, read_all, "closed/f"),
            (errno.EACCES, os.stat, "closed/f"),
            (errno.EACCES, lambda path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY)), "readonly/f"),
            (errno.EACCES, os.mkdir, "readonly/d"),
            (errno.EPERM, lambda path: os.chmod(path, 0o666), "public"),
            (errno.EPERM, lambda path: os.chown(path, USER, USER), "public"),
            (errno.EPERM, lambda path: os.utime(path, (1, 1)), "public"),
            (errno.EACCES, lambda path: os.utime(path), "public"),
            (errno.EACCES, lambda path: os.truncate(path, 0), "public"),
        ]:
            fails(code, user, c, i, function, f"{d}/{name}")
    c.call(C, lambda path: os.chmod(path, 0o644), f"{d}/secret")
    assert user(c, B, read_all, f"{d}/secret") == b"s"


def test_a_new_file_belongs_to_its_maker_with_the_mode_less_the_umask(shared_cluster, d):
    c = shared_cluster

    def make(path):
        os.umask(0o027)
        os.close(os.open(path + "/f", os.O_CREAT | os.O_WRONLY, 0o666))
        os.mkdir(path + "/d", 0o777)
        os.symlink("x", path + "/l")

    user(c, A, make, d)
    for name, mode in ("f", 0o640), ("d", 0o750), ("l", 0o777):
        s = c.stat(B, f"{d}/{name}")
        assert (s.st_uid, s.st_gid, s.st_mode & 0o7777) == (USER, USER, mode)
    user(c, B, lambda path: os.chmod(path, 0o604), f"{d}/f")
    assert user(c, C, read_all, f"{d}/f", OTHER) == b""


def test_a_sticky_directory_protects_the_files_of_others(shared_cluster, d):
    c = shared_cluster
    c.call(A, lambda path: os.chmod(path, 0o1777), d)
    time.sleep(0.06)
    user(c, A, lambda path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY)), f"{d}/f")
    fails(errno.EPERM, user, c, B, os.unlink, f"{d}/f", OTHER)
    fails(errno.EPERM, user, c, B, lambda path: os.rename(path, path + "2"), f"{d}/f", OTHER)
    user(c, C, os.unlink, f"{d}/f")


def test_a_member_of_the_group_may_what_the_group_may(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    c.call(A, lambda path: os.chown(path, 0, 4321), f"{d}/f")
    c.call(A, lambda path: os.chmod(path, 0o640), f"{d}/f")

    def member(path):
        os.setgroups([4321])
        os.setresuid(USER, USER, USER)
        return read_all(path)

    assert c.call(B, member, f"{d}/f") == b"x"
    fails(errno.EACCES, user, c, B, read_all, f"{d}/f")


@pytest.mark.parametrize("change", ["write", "append", "truncate", "chown"])
def test_a_change_by_a_user_clears_set_user_id_and_set_group_id(shared_cluster, d, change):
    c = shared_cluster
    c.write(A, f"{d}/f", "#!/bin/sh\n")
    c.call(A, lambda path: os.chown(path, USER, USER), f"{d}/f")
    c.call(A, lambda path: os.chmod(path, 0o6777), f"{d}/f")
    assert c.stat(B, f"{d}/f").st_mode & 0o7777 == 0o6777

    def do(path):
        if change == "chown":
            os.chown(path, -1, USER)
        elif change == "truncate":
            os.truncate(path, 3)
        else:
            fd = os.open(path, os.O_WRONLY | (os.O_APPEND if change == "append" else 0))
            os.write(fd, b"x")
            os.close(fd)

    user(c, B, do, f"{d}/f", USER)
    assert c.stat(C, f"{d}/f").st_mode & 0o7777 == 0o777


def test_root_keeps_set_user_id_when_it_writes(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    c.call(A, lambda path: os.chmod(path, 0o6755), f"{d}/f")
    c.append(B, f"{d}/f", "y")
    assert c.stat(C, f"{d}/f").st_mode & 0o7777 == 0o6755


def test_a_directory_with_set_group_id_gives_its_group_on(shared_cluster, d):
    c = shared_cluster
    c.mkdir(A, f"{d}/shared")
    c.call(A, lambda path: os.chown(path, 0, 4321), f"{d}/shared")
    c.call(A, lambda path: os.chmod(path, 0o2777), f"{d}/shared")
    time.sleep(0.06)

    def make(path):
        os.umask(0o022)
        os.close(os.open(path + "/f", os.O_CREAT | os.O_WRONLY, 0o644))
        os.close(os.open(path + "/x", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        os.mkdir(path + "/d")
        os.mkdir(path + "/d/e")
        os.symlink("f", path + "/l")

    user(c, B, make, f"{d}/shared")
    for name, mode in ("f", 0o644), ("x", 0o644), ("d", 0o2755), ("d/e", 0o2755), ("l", 0o777):
        s = c.stat(C, f"{d}/shared/{name}")
        assert (s.st_uid, s.st_gid, s.st_mode & 0o7777) == (USER, 4321, mode), name


# ---- locks, and local mode ----

def test_flock_excludes_processes_of_the_same_node(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/lock", "")
    result = c.run(f"flock {d}/lock bash -c 'flock -n {d}/lock true; echo inner $?'; flock -n {d}/lock echo free", A)
    assert result.stdout == "inner 1\nfree\n"


def test_local_reads_see_own_writes_at_once_and_those_of_others_in_the_end(make_cluster):
    c = make_cluster(flags=["-o", "read=local"])
    c.write(A, "f", "0")
    for n in range(1, 20):
        i = n % 3 + 1
        c.write(i, "f", str(n))
        assert c.read(i, "f") == str(n).encode()
        assert c.stat(i, "f").st_size == len(str(n))
    for i in c.nodes():
        wait_for(lambda: c.read(i, "f") == b"19", 10)
    c.cut(C)
    c.write(A, "f", "newer")
    assert c.read(C, "f") == b"19"
    c.heal(C)
    wait_for(lambda: c.read(C, "f") == b"newer")


def test_local_reads_never_go_back(make_cluster):
    c = make_cluster(flags=["-o", "read=local"])
    c.write(A, "f", "0")

    def writer():
        for n in range(1, 200):
            fd = os.open(c.path(A, "f"), os.O_WRONLY | os.O_TRUNC)
            os.write(fd, str(n).encode())
            os.close(fd)

    def reader(i):
        seen = [0]
        while seen[-1] != 199:
            seen.append(int(read_all(c.path(i, "f"))))
        return seen

    wait_for(lambda: all(c.exists(i, "f") for i in c.nodes()))
    _, *readers = in_parallel([writer, *(lambda i=i: reader(i) for i in c.nodes())])
    for seen in readers:
        assert seen == sorted(seen)
