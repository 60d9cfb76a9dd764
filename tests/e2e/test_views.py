"""Views: names with an @. The past, @stat, @log, conditions, what is a view and what an ordinary name, and who may see what.
And the computed attributes."""

import errno
import os
import re
import time

import pytest

from hands import as_user, in_parallel
from keel import bounded

A, B, C = 1, 2, 3
USER, OTHER = 65534, 65533


def fails(code, call, *arguments, **options):
    with pytest.raises(OSError) as caught:
        call(*arguments, **options)
    assert caught.value.errno == code, caught.value


def version(c, name, node=B):
    return int(c.xattr(node, name, "user.keel.version"))


def read_all(path):
    with open(path, "rb", buffering=0) as file:
        return b"".join(iter(lambda: file.read(1 << 20), b""))


def put(path, data, flags=os.O_CREAT | os.O_TRUNC):
    fd = os.open(path, os.O_WRONLY | flags, 0o644)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def user(c, i, function, name="", uid=USER):
    return c.call(i, lambda path: as_user(uid, function, path), name)


# ---- the past ----

@pytest.mark.sanitizer
def test_every_old_value_can_be_read_on_every_node(shared_cluster, d):
    c = shared_cluster
    values = {}
    for n in range(9):
        c.write(n % 3 + 1, f"{d}/f", f"value {n}" * n)
        values[c.revision(A, f"{d}/f")] = f"value {n}".encode() * n
    c.unlink(A, f"{d}/f")
    for i in c.nodes():
        for revision, value in values.items():
            assert c.read(i, f"{d}/f@rev={revision}") == value
            assert c.stat(i, f"{d}/f@rev={revision}").st_size == len(value)
    first, last = min(values), max(values)
    fails(errno.ENOENT, c.read, B, f"{d}/f@rev={first - 1}")
    fails(errno.ENOENT, c.read, B, f"{d}/f@rev={last + 1}")
    fails(errno.ENOENT, c.read, B, f"{d}/f")


def test_the_view_of_a_revision_between_two_changes_shows_the_older(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "old")
    c.write(A, f"{d}/other", "x")
    between = c.revision(A, f"{d}/other")
    c.write(A, f"{d}/f", "new")
    assert c.read(B, f"{d}/f@rev={between}") == b"old"
    assert c.read(B, f"{d}/f@rev={between + 1}") == b"new"


def test_a_revision_that_does_not_exist_yet_is_stale(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    revision = c.revision(A, f"{d}/f")
    for name in f"{d}/f@rev={revision + 1000}", f"{d}/f@rev=18446744073709551615":
        fails(errno.ESTALE, c.read, B, name)
    fails(errno.ESTALE, c.listdir, B, f"{d}/@rev={revision + 1000}")
    fails(errno.ESTALE, c.listdir, B, f"@rev={revision + 1000}")


def test_a_revision_just_made_elsewhere_can_be_read_at_once(shared_cluster, d):
    c = shared_cluster
    for n in range(20):
        c.write(A, f"{d}/f", str(n))
        revision = c.revision(A, f"{d}/f")
        assert c.read(C, f"{d}/f@rev={revision}") == str(n).encode()


@pytest.mark.sanitizer
def test_the_past_of_a_tree_is_a_tree(shared_cluster, d, tmp_path):
    c = shared_cluster
    c.run(f"""cd {d} && mkdir -p conf/sub/empty && echo one > conf/a && echo two > conf/sub/b && ln -s a conf/l
              && chmod 600 conf/a && head -c 100000 /dev/urandom > conf/big""".replace("\n", " "), A)
    c.run(f"cp -a {d}/conf {tmp_path}/copy", A)
    revision = int(c.status(A)["revision"])
    c.run(f"""cd {d}/conf && echo changed > a && rm -r sub && ln -sfn big l && echo new > new && rm big && mkdir big""", B)
    for view in f"{d}/conf/@rev={revision}", f"{d}/conf@rev={revision}", f"@rev={revision}/{d}/conf", f"{d}/@rev={revision}/conf":
        c.run(f"diff -r --no-dereference {view}/ {tmp_path}/copy", C)
        assert c.listdir(C, view) == ["a", "big", "l", "sub"]
        assert c.read(C, f"{view}/sub/b") == b"two\n"
        assert c.call(C, os.readlink, f"{view}/l") == "a"
        assert c.read(C, f"{view}/l") == b"one\n"
        assert c.listdir(C, f"{view}/sub") == ["b", "empty"]
    result = c.run(f"diff -r {d}/conf/@rev={revision} {d}/conf", C, check=False)
    assert result.returncode == 1 and "Only in" in result.stdout
    found = c.run(f"cd {d}/conf/@rev={revision} && find . | sort", C).stdout.split()
    assert found == [".", "./a", "./big", "./l", "./sub", "./sub/b", "./sub/empty"]
    c.run(f"rm -rf {d}/conf && cp -a {d}/@rev={revision}/conf {d}/conf", B)
    c.run(f"diff -r --no-dereference {d}/conf {tmp_path}/copy", A)
    assert c.stat(A, f"{d}/conf/a").st_mode & 0o777 == 0o600


def test_a_view_shows_mode_and_times_of_then(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    c.call(A, lambda path: os.utime(path, (100, 200)), f"{d}/f")
    revision, now = c.revision(A, f"{d}/f"), c.stat(A, f"{d}/f")
    c.write(A, f"{d}/f", "longer")
    then = c.stat(B, f"{d}/f@rev={revision}")
    assert (then.st_size, then.st_mtime, then.st_atime, then.st_mode) == (1, 200, 100, now.st_mode)
    assert then.st_ctime_ns == now.st_ctime_ns
    assert c.stat(C, f"{d}/f@rev={revision}").st_ino == then.st_ino != now.st_ino


def test_the_past_is_read_only(shared_cluster, d):
    c = shared_cluster
    c.run(f"mkdir {d}/sub && echo x > {d}/sub/f", A)
    revision = int(c.status(A)["revision"])
    before = revision
    for name in f"{d}/sub/f@rev={revision}", f"{d}/@rev={revision}/sub/f":
        for change in (
            lambda path: os.open(path, os.O_WRONLY), lambda path: os.open(path, os.O_RDWR),
            lambda path: os.open(path, os.O_WRONLY | os.O_TRUNC), lambda path: os.truncate(path, 0),
            os.unlink, lambda path: os.chmod(path, 0o777), lambda path: os.chown(path, 1, 1), os.utime,
            lambda path: os.rename(path, c.path(B, f"{d}/g")),
            lambda path: os.rename(c.path(B, f"{d}/sub/f"), path),
        ):
            fails(errno.EROFS, c.call, B, change, name)
    view = f"{d}/sub/@rev={revision}"
    for change in (
        lambda path: os.mkdir(path + "/d"), lambda path: os.symlink("x", path + "/l"),
        lambda path: os.close(os.open(path + "/new", os.O_CREAT | os.O_WRONLY)),
        lambda path: os.unlink(path + "/f"), os.rmdir,
    ):
        fails(errno.EROFS, c.call, B, change, view)
    assert int(c.status(B)["revision"]) == before


def test_dotdot_in_a_view_stays_in_the_view(shared_cluster, d):
    c = shared_cluster
    c.run(f"mkdir -p {d}/a/b && echo old > {d}/a/f", A)
    revision = int(c.status(A)["revision"])
    c.run(f"echo new > {d}/a/f", A)
    assert c.read(B, f"{d}/@rev={revision}/a/b/../f") == b"old\n"
    assert c.run(f"cd {d}/@rev={revision}/a/b && cat ../f", B).stdout == "old\n"


def test_an_open_view_stays_as_it_is(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "old value")
    revision = c.revision(A, f"{d}/f")
    fd = h.open(c.path(B, f"{d}/f@rev={revision}"), os.O_RDONLY)
    assert h.read(fd, 3) == b"old"
    c.write(A, f"{d}/f", "new")
    c.unlink(A, f"{d}/f")
    assert h.read(fd, 100) == b" value"
    assert h.pread(fd, 100, 0) == b"old value"


def test_a_name_that_was_something_else_is_shown_as_what_it_was(shared_cluster, d):
    c = shared_cluster
    revisions = []
    for command in f"echo file > {d}/x", f"rm {d}/x; mkdir {d}/x; touch {d}/x/inside", f"rm -r {d}/x; ln -s target {d}/x", f"rm {d}/x":
        c.run(command, A)
        revisions.append(int(c.status(A)["revision"]))
    assert c.read(B, f"{d}/x@rev={revisions[0]}") == b"file\n"
    assert c.listdir(B, f"{d}/x@rev={revisions[1]}") == ["inside"]
    assert c.call(B, os.readlink, f"{d}/x@rev={revisions[2]}") == "target"
    fails(errno.ENOENT, c.stat, B, f"{d}/x@rev={revisions[3]}")


def test_a_directory_that_is_gone_can_be_entered_in_the_past(shared_cluster, d):
    c = shared_cluster
    c.run(f"mkdir -p {d}/gone/sub && echo x > {d}/gone/sub/f", A)
    revision = int(c.status(A)["revision"])
    c.run(f"rm -r {d}/gone", B)
    assert c.read(C, f"{d}/@rev={revision}/gone/sub/f") == b"x\n"
    assert c.read(C, f"{d}/gone@rev={revision}/sub/f") == b"x\n"


# ---- @stat and @log ----

@pytest.mark.sanitizer
def test_stat_is_text_in_a_fixed_form(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "1")
    first = c.revision(A, f"{d}/f")
    c.write(B, f"{d}/f", "12345")
    for i in c.nodes():
        assert c.read(i, f"{d}/f@stat").decode() == (
            f"revision: {c.revision(i, f'{d}/f')}\ncreate_revision: {first}\nversion: 2\nlease: none\nttl: none\nsize: 5\n")
    assert "size: 0\n" in c.read(B, f"{d}/@stat").decode()
    assert c.read(B, f"{d}/@stat") == c.read(B, f"{d}@stat")
    fails(errno.ENOENT, c.read, B, f"{d}/missing@stat")
    c.unlink(A, f"{d}/f")
    fails(errno.ENOENT, c.read, B, f"{d}/f@stat")
    c.write(A, f"{d}/f", "again")
    again = c.revision(A, f"{d}/f")
    assert c.read(B, f"{d}/f@stat").decode().startswith(f"revision: {again}\ncreate_revision: {again}\nversion: 1\n")


def test_stat_of_a_bound_file_names_lease_and_time_left(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f@ttl=100", "x")
    text = c.read(B, f"{d}/f@stat").decode()
    match = re.fullmatch(
        r"revision: (\d+)\ncreate_revision: \1\nversion: 1\nlease: ([0-9a-f]{16})\nttl: (\d+)\nsize: 1\n", text)
    assert match and 90 <= int(match[3]) <= 100
    assert c.xattr(C, f"{d}/f", "user.keel.lease") == match[2]


LINE = re.compile(
    r"revision=(\d+) version=(\d+) type=(put|delete) size=(\d+) mode=([0-7]{4})"
    r" time=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) lease=(none|[0-9a-f]{16})")


def log_of(c, i, name):
    return [LINE.fullmatch(line).groups() for line in c.read(i, f"{name}@log").decode().splitlines()]


@pytest.mark.sanitizer
def test_log_has_a_line_for_each_revision_the_newest_first(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "1")
    c.write(B, f"{d}/f", "123")
    c.call(C, lambda path: os.chmod(path, 0o4711), f"{d}/f")
    c.unlink(A, f"{d}/f")
    c.write(B, f"{d}/f", "")
    lines = log_of(c, C, f"{d}/f")
    assert [line[1:5] for line in lines] == [
        ("1", "put", "0", "0644"), ("0", "delete", "0", "0000"), ("3", "put", "3", "4711"),
        ("2", "put", "3", "0644"), ("1", "put", "1", "0644")]
    revisions = [int(line[0]) for line in lines]
    assert revisions == sorted(revisions, reverse=True)
    assert [line[5] for line in lines] == sorted((line[5] for line in lines), reverse=True)
    now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + 1))
    assert lines[0][5][:19] <= now
    for i in c.nodes():
        assert log_of(c, i, f"{d}/f") == lines
        assert c.read(i, f"{d}/f@rev={revisions[3]}") == b"123"


def test_log_works_for_what_is_gone_and_for_directories_and_links(shared_cluster, d):
    c = shared_cluster
    c.mkdir(A, f"{d}/sub")
    c.call(A, lambda path: os.symlink("target", path), f"{d}/l")
    c.call(A, os.rmdir, f"{d}/sub")
    assert [line[2] for line in log_of(c, B, f"{d}/sub")] == ["delete", "put"]
    assert [line[1:5] for line in log_of(c, B, f"{d}/l")] == [("1", "put", "6", "0777")]
    assert len(log_of(c, B, d)) >= 1
    assert c.read(B, f"{d}/@log") == c.read(B, f"{d}@log")
    fails(errno.ENOENT, c.read, B, f"{d}/never@log")


def test_texts_cannot_be_written_and_are_no_directories(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    before = c.revision(A, f"{d}/f")
    for word in "stat", "log":
        for change in (
            lambda path: os.close(os.open(path, os.O_WRONLY)), os.unlink, lambda path: os.truncate(path, 0),
            lambda path: os.rename(path, path + "x"), lambda path: os.chmod(path, 0o777),
        ):
            with pytest.raises(OSError) as caught:
                c.call(B, change, f"{d}/f@{word}")
            assert caught.value.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.EINVAL), caught.value
        fails(errno.ENOTDIR, c.listdir, B, f"{d}/f@{word}")
        fails(errno.ENOTDIR, c.stat, B, f"{d}/f@{word}/")
        fails(errno.ENOTDIR, c.stat, B, f"{d}/f@{word}/x")
    assert c.revision(B, f"{d}/f") == before
    assert c.listdir(B, d) == ["f"]


def test_the_size_of_a_text_is_what_can_be_read(shared_cluster, d):
    c = shared_cluster
    for n in range(30):
        c.write(A, f"{d}/f", str(n))
    text = c.read(B, f"{d}/f@log")
    assert c.stat(B, f"{d}/f@log").st_size == len(text)
    assert c.run(f"head -n 2 {d}/f@log; tail -n 1 {d}/f@log; wc -l < {d}/f@log; grep -c put {d}/f@log", B).stdout.splitlines()[3:] == [
        "30", "30"]


# ---- conditions ----

@pytest.mark.sanitizer
def test_a_conditional_write_is_committed_only_at_that_revision(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "one")
    revision = c.revision(A, f"{d}/f")
    c.write(B, f"{d}/f@if={revision}", "two", flags=os.O_TRUNC)
    assert (c.read(C, f"{d}/f"), version(c, f"{d}/f")) == (b"two", 2)
    for i in c.nodes():
        fails(errno.ESTALE, c.write, i, f"{d}/f@if={revision}", "three", flags=os.O_TRUNC)
    assert (c.read(C, f"{d}/f"), version(c, f"{d}/f")) == (b"two", 2)
    fails(errno.ENOENT, c.write, B, f"{d}/missing@if={revision}", "x", flags=os.O_TRUNC)


def test_a_shell_sees_the_error_of_an_unmet_condition(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "one")
    revision = c.revision(A, f"{d}/f")
    assert c.run(f"echo two > {d}/f@if={revision}", B).returncode == 0
    result = c.run(f"echo three > {d}/f@if={revision}", C, check=False)
    assert result.returncode != 0 and "Stale file handle" in result.stderr
    result = c.run(f"echo three > {d}/f@if=0", C, check=False)
    assert result.returncode != 0 and "File exists" in result.stderr
    assert c.read(A, f"{d}/f") == b"two\n"


def test_if_zero_creates_and_never_overwrites(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f@if=0", "mine")
    assert c.read(B, f"{d}/f") == b"mine"
    for i in c.nodes():
        fails(errno.EEXIST, c.write, i, f"{d}/f@if=0", "theirs")
    assert c.listdir(C, d) == ["f"]
    c.unlink(C, f"{d}/f")
    c.write(C, f"{d}/f@if=0", "theirs")
    assert c.read(A, f"{d}/f") == b"theirs"


@pytest.mark.sanitizer
def test_exactly_one_of_many_if_zero_writers_succeeds_and_its_content_is_there(shared_cluster, d):
    c = shared_cluster

    def attempt(i, k, n):
        try:
            put(c.path(i, f"{d}/{n}@if=0"), f"{i}.{k}".encode())
        except FileExistsError:
            return None
        return f"{i}.{k}".encode()

    results = in_parallel([
        lambda i=i, k=k: [attempt(i, k, n) for n in range(15)] for i in c.nodes() for k in range(2)])
    for n, outcome in enumerate(zip(*results)):
        winners = [value for value in outcome if value]
        assert len(winners) == 1
        assert c.read(A, f"{d}/{n}") == winners[0]


def test_if_zero_is_decided_at_open(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    fd = h.open(c.path(A, f"{d}/f@if=0"), os.O_WRONLY | os.O_CREAT, 0o644)
    assert (c.read(B, f"{d}/f"), version(c, f"{d}/f")) == (b"", 1)
    result = c.run(f": > {d}/f@if=0", C, check=False)
    assert result.returncode != 0 and "File exists" in result.stderr
    h.write(fd, b"content")
    assert (c.read(B, f"{d}/f"), version(c, f"{d}/f")) == (b"content", 2)
    h.write(fd, b", more")
    c.append(C, f"{d}/f", "!")
    fails(errno.ESTALE, h.write, fd, b"and more")
    assert c.read(B, f"{d}/f") == b"content, more!"


def test_after_its_first_commit_a_handle_goes_on_from_its_own(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/f", "0")
    fd = h.open(c.path(B, f"{d}/f@if={c.revision(A, f'{d}/f')}"), os.O_WRONLY)
    h.pwrite(fd, b"1", 0)
    h.pwrite(fd, b"2", 0)
    assert c.read(C, f"{d}/f") == b"2"
    c.write(A, f"{d}/f", "other")
    fails(errno.ESTALE, h.pwrite, fd, b"3", 0)
    assert c.read(C, f"{d}/f") == b"other"


def test_mv_and_rm_take_a_condition(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "one")
    old = c.revision(A, f"{d}/f")
    c.write(A, f"{d}/tmp", "two")
    c.run(f"mv {d}/tmp {d}/f@if={old}", B)
    assert (c.read(C, f"{d}/f"), version(c, f"{d}/f")) == (b"two", 2)
    c.write(A, f"{d}/tmp", "three")
    fails(errno.ESTALE, c.rename, B, f"{d}/tmp", f"{d}/f@if={old}")
    fails(errno.ESTALE, c.unlink, B, f"{d}/f@if={old}")
    fails(errno.EEXIST, c.rename, B, f"{d}/tmp", f"{d}/f@if=0")
    assert c.listdir(C, d) == ["f", "tmp"]
    c.rename(B, f"{d}/tmp", f"{d}/g@if=0")
    assert c.read(C, f"{d}/g") == b"three"
    c.run(f"rm {d}/f@if={c.revision(A, f'{d}/f')}", B)
    assert c.listdir(C, d) == ["g"]


def test_read_and_conditional_write_on_three_nodes_count_right(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/n", "0")

    def count(i):
        done = 0
        while done < 25:
            revision = os.getxattr(c.path(i, f"{d}/n"), "user.keel.revision").decode()
            value = int(read_all(c.path(i, f"{d}/n@rev={revision}")))
            try:
                put(c.path(i, f"{d}/n@if={revision}"), str(value + 1).encode(), os.O_TRUNC)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                continue
            done += 1

    in_parallel([lambda i=i: count(i) for i in c.nodes()])
    assert c.read(A, f"{d}/n") == b"75"
    assert version(c, f"{d}/n") == 76


def test_the_truncation_of_an_unmet_condition_changes_nothing(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "value")
    revision = c.revision(A, f"{d}/f")
    c.write(A, f"{d}/f", "newer")
    c.run(f": > {d}/f@if={revision}", B, check=False)
    assert c.read(C, f"{d}/f") == b"newer"


def test_a_conditional_name_of_the_longest_file_name_works(shared_cluster, d):
    c = shared_cluster
    longest = "n" * 255
    c.write(A, f"{d}/{longest}@if=0", "x")
    revision = c.revision(B, f"{d}/{longest}")
    c.write(B, f"{d}/{longest}@if={revision}", "y", flags=os.O_TRUNC)
    assert c.read(C, f"{d}/{longest}@rev={revision}") == b"x"
    assert "version: 3" in c.read(C, f"{d}/{longest}@stat").decode()
    assert len(log_of(c, A, f"{d}/{longest}")) == 3
    fails(errno.ENAMETOOLONG, c.read, A, f"{d}/{longest}n@stat")


# ---- what is a view, and what is not ----

@pytest.mark.parametrize("name", [
    "user@host", "a@", "@", "photo@2x.png", "a@statistics", "a@Stat", "a@revision=3", "@types", "mail@log.example", "a@if0",
    "a@ttl10", "@@", "a@rev@b", "x@kee", "a@hold.", "foo@if =3"])
@pytest.mark.sanitizer
def test_an_ordinary_name_with_an_at_is_an_ordinary_file(shared_cluster, d, name):
    c = shared_cluster
    c.write(A, f"{d}/{name}", "x")
    assert c.listdir(B, d) == [name]
    assert c.read(C, f"{d}/{name}") == b"x"
    assert "version: 1" in c.read(C, f"{d}/{name}@stat").decode()
    c.rename(B, f"{d}/{name}", f"{d}/other@host")
    c.unlink(C, f"{d}/other@host")


@pytest.mark.parametrize("name", [
    "f@rev", "f@rev=", "f@rev=0", "f@rev=01", "f@rev=+1", "f@rev=-1", "f@rev=x", "f@rev=1x", "f@rev= 1", "f@rev=99999999999999999999",
    "f@stat=1", "f@log=", "f@stat,log", "f@stat,stat", "f@rev=1,stat", "f@rev=1,rev=1", "f@if", "f@if=", "f@if=x", "f@if=01",
    "f@if=0,if=0", "f@ttl", "f@ttl=0", "f@ttl=1.5", "f@ttl=31536001", "f@ttl=10,lease=ab", "f@hold", "f@if=0,hold", "f@lease",
    "f@lease=", "f@lease=xyz", "f@lease=00112233445566778", "f@ttl=10,nonsense", "f@if=0,nonsense=1", "f@stat,", "f@if=0,,hold",
    "f@rev=1@stat", "f@stat@log", "f@watch", "f@watch=3", "f@fence=3", "f@keys", "f@put", "f@delete", "f@json", "f@lock", "f@txn",
    "f@keel", "f@keelfoo", "f@keel=1", "@if=0", "@ttl=10", ".@stat", "..@stat", "@keelother", "f@stat,user"])
def test_a_malformed_view_is_invalid_for_reading_and_for_creating(shared_cluster, d, name):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    before = int(c.status(A)["revision"])
    for call in (
        read_all, os.lstat, lambda path: put(path, b"x"), os.mkdir, os.unlink,
        lambda path: os.symlink("x", path),
        lambda path: os.rename(os.path.dirname(path) + "/f", path),
    ):
        fails(errno.EINVAL, c.call, B, call, f"{d}/{name}")
    assert int(c.status(B)["revision"]) == before
    assert c.listdir(C, d) == ["f"]


def test_the_word_keel_is_only_for_the_root(shared_cluster, d):
    c = shared_cluster
    fails(errno.EINVAL, c.listdir, B, f"{d}/@keel")
    assert {"status", "members"} <= set(c.listdir(B, "@keel"))
    fails(errno.ENOENT, c.read, B, "@keel/nonsense")


def test_views_cannot_be_made_as_files(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    revision = c.revision(A, f"{d}/f")
    for name in f"f@rev={revision}", "f@stat", "f@log", "new@stat":
        for make in (
            os.mkdir, lambda path: os.symlink("x", path), lambda path: os.mknod(path, 0o100644),
            lambda path: os.rename(os.path.dirname(path) + "/f", path),
        ):
            with pytest.raises(OSError) as caught:
                c.call(B, make, f"{d}/{name}")
            assert caught.value.errno in (
                errno.EEXIST, errno.EROFS, errno.EINVAL, errno.EPERM, errno.ENOENT), caught.value
    for name in "f@if=0", "new@if=0", "new@ttl=10":
        for make in os.mkdir, lambda path: os.symlink("x", path):
            with pytest.raises(OSError) as caught:
                c.call(B, make, f"{d}/{name}")
            assert caught.value.errno in (errno.EEXIST, errno.EINVAL, errno.EROFS), caught.value
    assert c.listdir(C, d) == ["f"]


def test_views_are_never_listed(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    revision = c.revision(A, f"{d}/f")
    for name in f"{d}/f@rev={revision}", f"{d}/f@stat", f"{d}/f@log", f"{d}/@stat":
        c.read(B, name)
    c.listdir(B, f"{d}/@rev={revision}")
    c.status(B)
    for i in c.nodes():
        assert c.listdir(i, d) == ["f"]
        assert not [name for name in c.listdir(i) if name.startswith("@")]
        assert c.run(f"find {d}", i).stdout.split() == [d, f"{d}/f"]


# ---- who may see what ----

def test_a_file_closed_today_is_closed_in_the_past(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "open then")
    revision = c.revision(A, f"{d}/f")
    for i in c.nodes():
        assert user(c, i, read_all, f"{d}/f@rev={revision}") == b"open then"
    c.call(A, lambda path: os.chmod(path, 0o600), f"{d}/f")
    for i in c.nodes():
        for name in f"{d}/f@rev={revision}", f"{d}/@rev={revision}/f", f"@rev={revision}/{d}/f", f"{d}/f@stat", f"{d}/f@log":
            fails(errno.EACCES, user, c, i, read_all, name)
    assert c.read(B, f"{d}/f@rev={revision}") == b"open then"


def test_a_file_opened_today_stays_closed_in_the_past(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "secret")
    c.call(A, lambda path: os.chmod(path, 0o600), f"{d}/f")
    revision = c.revision(A, f"{d}/f")
    c.write(A, f"{d}/f", "harmless")
    c.call(A, lambda path: os.chmod(path, 0o644), f"{d}/f")
    assert user(c, B, read_all, f"{d}/f") == b"harmless"
    fails(errno.EACCES, user, c, B, read_all, f"{d}/f@rev={revision}")
    assert user(c, B, read_all, f"{d}/f@stat")
    assert user(c, B, read_all, f"{d}/f@log")


def test_a_directory_closed_today_is_closed_in_the_past(shared_cluster, d):
    c = shared_cluster
    c.mkdir(A, f"{d}/sub")
    c.write(A, f"{d}/sub/f", "x")
    revision = c.revision(A, f"{d}/sub/f")
    c.call(A, lambda path: os.chmod(path, 0o700), f"{d}/sub")
    time.sleep(0.06)
    for name in f"{d}/@rev={revision}/sub/f", f"@rev={revision}/{d}/sub/f", f"{d}/sub@rev={revision}/f", f"{d}/sub/f@rev={revision}":
        fails(errno.EACCES, user, c, B, read_all, name)
    fails(errno.EACCES, user, c, B, os.listdir, f"{d}/sub@rev={revision}")


def test_what_is_gone_is_for_its_last_owner_and_root(shared_cluster, d):
    c = shared_cluster
    user(c, A, lambda path: put(path, b"mine"), f"{d}/f")
    revision = c.revision(A, f"{d}/f")
    c.unlink(A, f"{d}/f")
    for i in c.nodes():
        assert user(c, i, read_all, f"{d}/f@rev={revision}") == b"mine"
        assert b"type=delete" in user(c, i, read_all, f"{d}/f@log")
        assert c.read(i, f"{d}/f@rev={revision}") == b"mine"
        fails(errno.EACCES, user, c, i, read_all, f"{d}/f@rev={revision}", OTHER)
        fails(errno.EACCES, user, c, i, read_all, f"{d}/f@log", OTHER)


def test_who_replaces_a_secret_file_does_not_get_to_read_it(shared_cluster, d):
    c = shared_cluster
    for name, replace in [
        ("moved", lambda path: (put(path + ".mine", b"x"), os.rename(path + ".mine", path))),
        ("made-anew", lambda path: (os.unlink(path), put(path, b"x"))),
    ]:
        c.write(A, f"{d}/{name}", "secret")
        c.call(A, lambda path: os.chmod(path, 0o600), f"{d}/{name}")
        revision = c.revision(A, f"{d}/{name}")
        user(c, B, replace, f"{d}/{name}")
        assert c.stat(A, f"{d}/{name}").st_uid == USER
        fails(errno.EACCES, user, c, C, read_all, f"{d}/{name}@rev={revision}")
        assert c.read(C, f"{d}/{name}@rev={revision}") == b"secret"


def test_who_is_given_a_file_may_read_its_past(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "old")
    c.call(A, lambda path: os.chmod(path, 0o600), f"{d}/f")
    revision = c.revision(A, f"{d}/f")
    c.call(A, lambda path: os.chown(path, USER, USER), f"{d}/f")
    assert user(c, B, read_all, f"{d}/f@rev={revision}") == b"old"
    assert c.stat(B, f"{d}/f@rev={revision}").st_uid == USER


def test_conditions_and_leases_are_no_way_around_permissions(shared_cluster, d):
    c = shared_cluster
    c.mkdir(A, f"{d}/sub")
    c.write(A, f"{d}/sub/f", "x")
    revision = c.revision(A, f"{d}/sub/f")
    for name in f"f@if={revision}", "f@ttl=10":
        fails(errno.EACCES, user, c, B, lambda path: put(path, b"y", 0), f"{d}/sub/{name}")
    for name in "new@if=0", "new@ttl=10", "new@if=0,ttl=10,hold":
        fails(errno.EACCES, user, c, B, lambda path: put(path, b"y"), f"{d}/sub/{name}")
    fails(errno.EACCES, user, c, B, os.unlink, f"{d}/sub/f@if={revision}")
    fails(errno.EPERM, user, c, B, lambda path: os.chmod(path, 0o777), f"{d}/sub/f@if={revision}")
    assert (c.listdir(C, f"{d}/sub"), c.read(C, f"{d}/sub/f")) == (["f"], b"x")


# ---- computed attributes ----

@pytest.mark.sanitizer
def test_computed_attributes_are_read_by_name_and_not_listed(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "1")
    first = c.revision(B, f"{d}/f")
    c.write(A, f"{d}/f", "2")
    for i in c.nodes():
        assert c.xattr(i, f"{d}/f", "user.keel.revision") == str(c.revision(A, f"{d}/f"))
        assert c.xattr(i, f"{d}/f", "user.keel.create_revision") == str(first)
        assert c.xattr(i, f"{d}/f", "user.keel.version") == "2"
        for name in "user.keel.lease", "user.keel.ttl", "user.keel.nonsense":
            fails(errno.ENODATA, c.xattr, i, f"{d}/f", name)
        assert c.call(i, os.listxattr, f"{d}/f") == []
    assert int(c.xattr(B, d, "user.keel.version")) >= 1
    assert c.xattr(B, "", "user.keel.create_revision") == "1"
    out = c.run(f"getfattr --only-values -n user.keel.version {d}/f", C).stdout
    assert out == "2"


def test_computed_attributes_cannot_be_set_or_removed(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "1")
    for name in "revision", "create_revision", "version", "ttl":
        fails(errno.EPERM, c.call, B, lambda path: os.setxattr(path, f"user.keel.{name}", b"9"), f"{d}/f")
    fails(errno.EOPNOTSUPP, c.call, B, lambda path: os.setxattr(path, "user.keel.lease", b"9"), f"{d}/f")
    with pytest.raises(OSError):
        c.call(B, lambda path: os.removexattr(path, "user.keel.version"), f"{d}/f")
    assert c.xattr(C, f"{d}/f", "user.keel.version") == "1"


def test_an_attribute_that_does_not_fit_is_out_of_range(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "1")

    def get(path):
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        buffer = ctypes.create_string_buffer(8)
        sizes = [libc.getxattr(os.fsencode(path), b"user.keel.create_revision", buffer, size) for size in (0, 8)]
        ctypes.set_errno(0)
        small = libc.getxattr(os.fsencode(path), b"user.keel.lease", buffer, 8)
        return sizes, small, ctypes.get_errno()

    sizes, small, code = c.call(B, get, f"{d}/f")
    assert sizes[0] == sizes[1] == len(c.xattr(B, f"{d}/f", "user.keel.create_revision"))
    assert (small, code) == (-1, errno.ENODATA)
    c.write(A, f"{d}/f@ttl=100", "1", flags=0)
    assert c.call(B, get, f"{d}/f")[1:] == (-1, errno.ERANGE)


@pytest.mark.cluster(nodes=1, flags=["-o", "list_xattr"])
def test_the_mount_option_list_xattr_lists_computed_attributes(cluster):
    c = cluster
    c.write(1, "f", "x")
    names = c.call(1, os.listxattr, "f")
    assert {"user.keel.revision", "user.keel.create_revision", "user.keel.version"} <= set(names)
    for name in names:
        assert c.xattr(1, "f", name)
    c.write(1, "g@ttl=100", "x")
    assert {"user.keel.lease", "user.keel.ttl"} <= set(c.call(1, os.listxattr, "g"))
