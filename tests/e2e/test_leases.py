"""Leases by path: files that go when their owner, its process, its node or its connection goes.

No test asserts that something has happened within a few milliseconds: bounds are those of the promise with room for a busy machine.
What must NOT happen early is measured against the time at which the test asked for it.
"""

import errno
import os
import re
import signal
import subprocess
import tempfile
import time

import pytest

from hands import as_user, in_parallel
from keel import wait_for

A, B, C = 1, 2, 3
ROOM = 8  # seconds more than promised, for a busy machine


def fails(code, call, *arguments, **options):
    with pytest.raises(OSError) as caught:
        call(*arguments, **options)
    assert caught.value.errno == code, caught.value


def lease_of(c, name, node=B):
    return c.xattr(node, name, "user.keel.lease")


def ttl_of(c, name, node=B):
    return int(c.xattr(node, name, "user.keel.ttl"))


def gone_everywhere(c, name, bound, nodes=None):
    for i in nodes or c.nodes():
        wait_for(lambda: not c.exists(i, name), bound, f"{name} to be gone on n{i}")


def hold_open(h, path, content=b"held", flags=os.O_CREAT | os.O_TRUNC):
    fd = h.open(path, os.O_WRONLY | flags, 0o644)
    h.write(fd, content)
    return fd


# ---- life and end ----

@pytest.mark.sanitizer
def test_a_file_goes_on_every_node_when_its_time_to_live_is_over_and_not_before(shared_cluster, d):
    c = shared_cluster
    began = time.monotonic()
    c.write(A, f"{d}/f@ttl=2", "x")
    lease = lease_of(c, f"{d}/f")
    assert re.fullmatch("[0-9a-f]{16}", lease)
    while c.exists(B, f"{d}/f"):
        assert time.monotonic() < began + 2 + ROOM
        time.sleep(0.02)
    assert time.monotonic() - began >= 2
    for i in c.nodes():
        assert not c.exists(i, f"{d}/f")
    first, second = c.read(C, f"{d}/f@log").decode().splitlines()
    assert " type=delete " in first and first.endswith(f"lease={lease}")
    assert " type=put " in second and second.endswith(f"lease={lease}")


def test_content_and_lease_come_in_one_revision(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f@ttl=100", "content")
    assert c.read(B, f"{d}/f") == b"content"
    assert c.xattr(B, f"{d}/f", "user.keel.version") == "1"
    assert len(c.read(B, f"{d}/f@log").splitlines()) == 1


def test_the_time_left_counts_down_on_every_node(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f@ttl=60", "x")
    start = {i: ttl_of(c, f"{d}/f", i) for i in c.nodes()}
    for i in c.nodes():
        assert 50 <= start[i] <= 60
        wait_for(lambda: ttl_of(c, f"{d}/f", i) < start[i], 5)
    assert "ttl: " in c.read(A, f"{d}/f@stat").decode()


@pytest.mark.sanitizer
def test_an_open_descriptor_keeps_the_file(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    fd = hold_open(h, c.path(B, f"{d}/f@ttl=1"))
    end = time.monotonic() + 3.5
    while time.monotonic() < end:
        for i in c.nodes():
            assert c.read(i, f"{d}/f") == b"held"
        time.sleep(0.05)
    h.write(fd, b", still")
    assert c.read(A, f"{d}/f") == b"held, still"
    h.close(fd)
    gone_everywhere(c, f"{d}/f", 1 + ROOM)


def test_a_killed_owner_lets_the_file_go_after_its_time_to_live(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    hold_open(h, c.path(B, f"{d}/f@ttl=1"))
    h.kill()
    gone_everywhere(c, f"{d}/f", 1 + ROOM)


def test_touch_renews(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f@ttl=2", "x")
    lease = lease_of(c, f"{d}/f")
    began = time.monotonic()
    while time.monotonic() < began + 5:
        c.run(f"touch {d}/f", int(time.monotonic() * 10) % 3 + 1)
        time.sleep(0.2)
        assert lease_of(c, f"{d}/f") == lease
    gone_everywhere(c, f"{d}/f", 2 + ROOM)


def test_writing_truncating_and_changing_the_mode_keep_the_lease(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f@ttl=100", "x")
    lease = lease_of(c, f"{d}/f")
    c.write(B, f"{d}/f", "overwritten")
    c.append(C, f"{d}/f", "!")
    c.call(A, lambda path: os.truncate(path, 3), f"{d}/f")
    c.call(B, lambda path: os.chmod(path, 0o600), f"{d}/f")
    assert lease_of(c, f"{d}/f", C) == lease
    c.run(f": > {d}/f", A)
    assert lease_of(c, f"{d}/f", C) == lease


def test_a_rename_takes_the_lease_along(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/bound@ttl=2", "x")
    lease = lease_of(c, f"{d}/bound")
    c.rename(B, f"{d}/bound", f"{d}/moved")
    assert lease_of(c, f"{d}/moved", C) == lease
    c.write(A, f"{d}/bound", "not bound")
    gone_everywhere(c, f"{d}/moved", 2 + ROOM)
    assert c.read(B, f"{d}/bound") == b"not bound"


def test_a_file_that_is_replaced_by_rename_is_bound_no_more(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f@ttl=1", "bound")
    c.write(B, f"{d}/tmp", "unbound")
    c.rename(B, f"{d}/tmp", f"{d}/f")
    fails(errno.ENODATA, lease_of, c, f"{d}/f")
    time.sleep(2.5)
    assert c.read(C, f"{d}/f") == b"unbound"


def test_an_existing_file_can_be_bound_and_bound_anew(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    c.write(B, f"{d}/f@ttl=100", "y", flags=os.O_TRUNC)
    first = lease_of(c, f"{d}/f")
    assert (c.read(C, f"{d}/f"), c.xattr(C, f"{d}/f", "user.keel.version")) == (b"y", "2")
    c.write(C, f"{d}/f@ttl=1", "z", flags=os.O_TRUNC)
    assert lease_of(c, f"{d}/f", A) != first
    gone_everywhere(c, f"{d}/f", 1 + ROOM)


def test_all_files_of_a_lease_go_in_one_revision(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    c.write(A, f"{d}/one@ttl=3", "1")
    lease = lease_of(c, f"{d}/one")
    c.write(B, f"{d}/two@lease={lease}", "2")
    c.write(C, f"{d}/three@lease={lease.lstrip('0')}", "3")
    for name in "one", "two", "three":
        assert lease_of(c, f"{d}/{name}") == lease
    gone_everywhere(c, f"{d}/one", 3 + ROOM)
    lines = {c.read(i, f"{d}/{name}@log").decode().splitlines()[0] for i in c.nodes() for name in ("one", "two", "three")}
    assert len(lines) == 1
    assert lines.pop().endswith(f"lease={lease}")


def test_a_deleted_file_is_not_deleted_again(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f@ttl=1", "bound")
    c.unlink(B, f"{d}/f")
    c.write(C, f"{d}/f", "unbound")
    time.sleep(2.5)
    assert c.read(A, f"{d}/f") == b"unbound"


# ---- hold ----

@pytest.mark.sanitizer
@pytest.mark.parametrize("node", [A, B, C])
def test_hold_ends_with_the_descriptor(shared_cluster, hand, d, node):
    c, h = shared_cluster, hand()
    fd = hold_open(h, c.path(node, f"{d}/f@ttl=60,hold"))
    for i in c.nodes():
        assert c.read(i, f"{d}/f") == b"held"
    h.close(fd)
    for i in c.nodes():
        assert not c.exists(i, f"{d}/f")


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_hold_ends_with_its_process(shared_cluster, hand, d, sig):
    c, h = shared_cluster, hand()
    hold_open(h, c.path(B, f"{d}/f@if=0,ttl=60,hold"))
    lease = lease_of(c, f"{d}/f")
    h.kill(sig)
    gone_everywhere(c, f"{d}/f", ROOM)  # far below 60 s
    assert c.read(A, f"{d}/f@log").decode().splitlines()[0].endswith(f"lease={lease}")


def test_hold_lasts_until_the_last_of_its_descriptors_is_closed(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    fd = hold_open(h, c.path(B, f"{d}/f@ttl=60,hold"))
    copy = h.dup(fd)
    h.close(fd)
    assert c.read(A, f"{d}/f") == b"held"
    h.write(copy, b", still")
    assert c.read(A, f"{d}/f") == b"held, still"
    h.close(copy)
    gone_everywhere(c, f"{d}/f", ROOM)


def test_a_child_that_inherits_the_descriptor_keeps_it(shared_cluster, d):
    c = shared_cluster
    shell = subprocess.Popen(
        ["bash", "-c", f"exec 9> {c.path(B, d)}/f@if=0,ttl=60,hold; echo me >&9; sleep 100 & echo $!; kill -9 $$"],
        stdout=subprocess.PIPE, text=True)
    child = int(shell.stdout.readline())
    try:
        shell.wait(20)
        time.sleep(0.5)
        assert c.read(A, f"{d}/f") == b"me\n"
    finally:
        os.kill(child, signal.SIGKILL)
        shell.stdout.close()
    gone_everywhere(c, f"{d}/f", ROOM)


def test_exactly_one_candidate_holds_and_its_successor_gets_a_larger_number(shared_cluster, hand, d):
    c = shared_cluster
    hands = {i: hand() for i in c.nodes()}
    name, last = f"{d}/leader", 0
    for _ in range(6):
        held = {}
        for i, h in hands.items():
            try:
                held[i] = h.open(c.path(i, f"{name}@if=0,ttl=30,hold"), os.O_WRONLY | os.O_CREAT, 0o644)
            except FileExistsError:
                pass
        assert len(held) == 1
        winner, fd = held.popitem()
        hands[winner].write(fd, str(winner).encode())
        created = int(c.xattr(B, name, "user.keel.create_revision"))
        assert created > last
        assert c.read(C, name) == str(winner).encode()
        last = created
        hands[winner].close(fd)
        hands[A], hands[B], hands[C] = hands[B], hands[C], hands[A]


def test_candidates_on_all_nodes_are_never_leaders_at_the_same_time(shared_cluster, d):
    c = shared_cluster
    name = f"{d}/leader"

    def candidate(i):
        terms, end = [], time.monotonic() + 4
        while time.monotonic() < end:
            try:
                fd = os.open(c.path(i, f"{name}@if=0,ttl=20,hold"), os.O_WRONLY | os.O_CREAT, 0o644)
            except FileExistsError:
                continue
            began = time.monotonic()
            os.write(fd, str(i).encode())
            assert open(c.path(i, name)).read() == str(i)
            terms.append((began, time.monotonic()))
            os.close(fd)
        return terms

    terms = sorted(sum(in_parallel([lambda i=i: candidate(i) for i in c.nodes()]), []))
    assert len(terms) > 10
    for (_, end), (began, _) in zip(terms, terms[1:]):
        assert end <= began


# ---- what is refused ----

def test_somebody_elses_lease_cannot_be_used(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f@ttl=100", "x")
    lease = lease_of(c, f"{d}/f")

    def bind(path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.write(fd, b"x")
        finally:
            os.close(fd)

    fails(errno.EPERM, c.call, B, lambda path: as_user(65534, bind, path), f"{d}/g@lease={lease}")
    assert not c.exists(C, f"{d}/g")


def test_a_lease_that_does_not_exist_cannot_be_used(shared_cluster, d):
    c = shared_cluster
    with pytest.raises(OSError):
        c.write(A, f"{d}/f@lease=fffffffffffff", "x")
    assert not c.exists(B, f"{d}/f")
    c.write(A, f"{d}/f", "kept")
    with pytest.raises(OSError):
        c.write(A, f"{d}/f@lease=fffffffffffff", "x", flags=os.O_TRUNC)
    assert c.read(B, f"{d}/f") == b"kept"


def test_directories_cannot_be_bound(shared_cluster, d):
    c = shared_cluster
    c.mkdir(A, f"{d}/sub")
    for call in os.mkdir, lambda path: os.open(path, os.O_RDONLY), os.listdir:
        fails(errno.EINVAL, c.call, B, call, f"{d}/sub@ttl=10")
    fails(errno.EINVAL, c.call, B, os.mkdir, f"{d}/new@ttl=10")


def test_an_open_that_only_reads_binds_nothing(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "x")
    before = c.revision(A, f"{d}/f")
    try:
        c.read(B, f"{d}/f@ttl=1")
    except OSError as error:
        assert error.errno in (errno.EINVAL, errno.EPERM, errno.EACCES)
    time.sleep(2)
    assert c.revision(C, f"{d}/f") == before


# ---- inotify ----

def test_watchers_on_the_holders_node_and_elsewhere_see_the_file_go(shared_cluster, hand, d):
    c, h = shared_cluster, hand()
    hold_open(h, c.path(B, f"{d}/f@ttl=60,hold"))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        watchers = subprocess.Popen(
            ["inotifywait", "-m", "--format", "%w%f %e", "-e", "delete", *(c.path(i, d) for i in c.nodes())],
            stdout=out, stderr=err)
        try:
            wait_for(lambda: b"established" in os.pread(err.fileno(), 9999, 0))
            h.kill()
            expected = {f"{c.path(i, d)}/f DELETE" for i in c.nodes()}
            wait_for(lambda: expected <= set(os.pread(out.fileno(), 9999, 0).decode().splitlines()), ROOM)
        finally:
            watchers.kill()
            watchers.wait(20)


# ---- losing the holder's node, its connection, the leader ----



@pytest.mark.sanitizer
def test_the_file_of_a_killed_node_goes_within_its_time_to_live(cluster, hand):
    c, h = cluster, hand()
    holder = c.followers()[0]
    others = [i for i in c.nodes() if i != holder]
    hold_open(h, c.path(holder, "f@ttl=2,hold"))
    c.kill(holder)
    began = time.monotonic()
    gone_everywhere(c, "f", 2 + ROOM, others)
    assert time.monotonic() - began > 0.5  # only time ends it: nobody has seen the descriptor close
    with pytest.raises(OSError) as caught:
        c.read(holder, "f")
    assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)


def test_the_file_of_a_killed_leader_goes_within_its_time_to_live_and_an_election(cluster, hand):
    c, h = cluster, hand()
    holder = c.leader()
    others = [i for i in c.nodes() if i != holder]
    hold_open(h, c.path(holder, "f@ttl=2,hold"))
    c.kill(holder)
    gone_everywhere(c, "f", 2 + ROOM, others)
    c.write(others[0], "f@if=0", "next")
    assert c.read(others[1], "f") == b"next"


def test_a_holder_that_is_cut_off_loses_its_lease_before_anybody_else_can_have_it(make_cluster, hand):
    c, h = make_cluster(flags=["--request-timeout", "60000"]), hand()
    holder = c.followers()[0]
    others = [i for i in c.nodes() if i != holder]
    fd = hold_open(h, c.path(holder, "f@if=0,ttl=3,hold"))
    c.cut(holder)
    # A write waits for the quorum; with the lease goes the descriptor.
    h.begin("write", fd, b"still me")
    wait_for(lambda: not c.exists(others[0], "f"), 3 + ROOM)
    with pytest.raises(OSError) as caught:
        h.end(bound=5)
    assert caught.value.errno == errno.EIO
    fails(errno.EIO, h.write, fd, b"still me")
    fails(errno.EIO, h.write, fd, b"still me")
    c.write(others[0], "f@if=0", "next")
    c.heal(holder)
    wait_for(lambda: c.read(holder, "f") == b"next")
    fails(errno.EIO, h.write, fd, b"still me")
    fails(errno.EIO, h.close, fd)
    assert c.read(others[1], "f") == b"next"


def test_the_lost_lease_is_seen_once_by_watchers_of_the_node_that_is_cut_off(make_cluster, hand):
    c, h = make_cluster(), hand()
    holder = c.followers()[0]
    other = next(i for i in c.nodes() if i != holder)
    fd = hold_open(h, c.path(holder, "f@if=0,ttl=3,hold"))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        watcher = subprocess.Popen(
            ["inotifywait", "-m", "--format", "%f %e", "-e", "delete,create", c.mnt(holder)], stdout=out, stderr=err)

        def seen():
            return os.pread(out.fileno(), 9999, 0).decode().splitlines()

        try:
            wait_for(lambda: b"established" in os.pread(err.fileno(), 9999, 0))
            c.cut(holder)
            wait_for(lambda: seen() == ["f DELETE"], 3 + ROOM)
            fails(errno.EIO, h.write, fd, b"x")
            c.heal(holder)
            wait_for(lambda: not c.exists(other, "f"), 3 + ROOM)
            c.write(other, "f", "next")
            c.write(other, "end", "")
            wait_for(lambda: "end CREATE" in seen())
            assert seen() == ["f DELETE", "f CREATE", "end CREATE"]
        finally:
            watcher.kill()
            watcher.wait(20)
    assert c.read(holder, "f") == b"next"


@pytest.mark.sanitizer
def test_a_change_of_leader_neither_ends_a_kept_lease_nor_revives_one(cluster, hand):
    c, h = cluster, hand()
    leader = c.leader()
    keeper = c.followers()[0]
    fd = hold_open(h, c.path(keeper, "kept@ttl=3,hold"))
    began = time.monotonic()
    c.write(keeper, "left@ttl=6", "x")
    c.kill(leader)
    while c.exists(keeper, "left"):
        assert time.monotonic() < began + 2 * 6 + ROOM
        assert c.read(keeper, "kept") == b"held"
        time.sleep(0.05)
    assert time.monotonic() - began >= 6
    end = time.monotonic() + 4
    while time.monotonic() < end:
        assert c.read(keeper, "kept") == b"held"
        time.sleep(0.05)
    h.write(fd, b"!")
    h.close(fd)
    assert not c.exists(keeper, "kept")


def test_leases_outlive_a_restart_of_the_whole_cluster_and_then_run_out(make_cluster):
    c = make_cluster()
    c.write(A, "short@ttl=3", "x")
    c.write(A, "long@ttl=1000", "x")
    lease = lease_of(c, "long")
    c.down()
    c.up()
    assert lease_of(c, "long", C) == lease
    assert 900 < ttl_of(c, "long") <= 1000
    gone_everywhere(c, "short", 6 + ROOM)
    assert c.exists(B, "long")


def test_a_stopped_node_finds_its_lease_lost_when_it_goes_on(make_cluster, hand):
    c, h = make_cluster(), hand()
    holder = c.followers()[0]
    other = next(i for i in c.nodes() if i != holder)
    fd = hold_open(h, c.path(holder, "f@if=0,ttl=2,hold"))
    c.kill(holder, "STOP")
    gone_everywhere(c, "f", 2 + ROOM, [other])
    c.write(other, "f@if=0", "next")
    c.kill(holder, "CONT")
    fails(errno.EIO, h.write, fd, b"still me")
    wait_for(lambda: c.read(holder, "f") == b"next")
    assert c.read(other, "f") == b"next"
