"""Starting, stopping and restarting nodes as an administrator does: what is left behind, what others notice, what is refused."""

import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

import keel
from keel import bounded, mounts_below, pokers_below, processes_of_sessions, run, wait_for
from load import Load

BINARY = os.environ.get("KEELFS", os.path.join(keel.ROOT, "build", "keelfs"))
# What a busy machine may take for things that take milliseconds.
ROOM = 5.0


def is_gone(c, i):
    return c.pid(i) not in processes_of_sessions({c.pid(i)})


# ---- stopping ----

@pytest.mark.sanitizer
@pytest.mark.parametrize("sign", ["TERM", "INT"])
def test_a_signal_stops_a_node_with_code_0_and_nothing_is_left(sign):
    c = keel.Cluster(1)
    os.makedirs(c.mnt(1))
    with open(os.path.join(c.dir, "n1", "log"), "w") as log:
        node = subprocess.Popen(
            [BINARY, "--name", "n1", "--data-dir", os.path.join(c.dir, "n1", "data"), "--bootstrap",
             "--initial-cluster", f"n1=127.0.0.1:{16000 + os.getpid() % 1900}", c.mnt(1)],
            stdin=subprocess.DEVNULL, stderr=log, start_new_session=True)
    c.sessions.add(node.pid)
    try:
        wait_for(lambda: mounts_below(c.dir) and c.write(1, "f", "x") is None)
        wait_for(lambda: pokers_below(c.dir), 20, "the poker runs")
    finally:
        node.send_signal(getattr(signal, f"SIG{sign}"))
        assert node.wait(20) == 0
    assert mounts_below(c.dir) == []
    wait_for(lambda: not pokers_below(c.dir), 5, "the poker ends")
    assert "stopping" in c.log(1) and c.log(1).endswith("info n1: stopped\n")
    assert os.listdir(c.mnt(1)) == []
    c.close()


@pytest.mark.sanitizer
@pytest.mark.parametrize("end", ["asked for", "its own"])
def test_who_asks_again_for_an_end_that_has_begun_does_not_cut_it_short(make_cluster, end):
    c = make_cluster(nodes=1)
    arguments = c.arguments(1)
    for _ in range(10):
        c.kill(1, "TERM")
        mounted = c.log(1).count("mounted on")
        with open(os.path.join(c.dir, "n1", "log"), "a") as log:
            node = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True)
        c.sessions.add(node.pid)
        wait_for(lambda: c.log(1).count("mounted on") > mounted, 20)
        if end == "its own":
            run(["umount", "-l", c.mnt(1)])
        deadline = time.monotonic() + 20
        while node.poll() is None and time.monotonic() < deadline:
            node.terminate()
            time.sleep(0.0005)
        if node.poll() is None:
            node.kill()
        assert node.wait() in ((0,) if end == "asked for" else (0, 1))
        c.start(1)


def test_readiness_is_told_with_the_mount_and_missing_peers_in_the_status(tmp_path):
    port = 16000 + os.getpid() % 1900
    point = tmp_path / "mnt"
    point.mkdir()
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(20)
    node = subprocess.Popen(
        [BINARY, "--name", "n1", "--data-dir", str(tmp_path / "data"), "--bootstrap",
         "--initial-cluster", f"n1=127.0.0.1:{port},n2=127.0.1.2:{port}", str(point)],
        stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env=dict(os.environ, NOTIFY_SOCKET=str(tmp_path / "notify")))
    try:
        assert manager.recv(4096) == b"READY=1"
        assert mounts_below(str(point)) == [str(point)]
        status = manager.recv(4096).decode()
        assert status == f"STATUS=mounted on {point}, not connected: n2"
    finally:
        node.terminate()
        assert node.wait(20) == 0
    assert manager.recv(4096) == b"STOPPING=1"
    assert mounts_below(str(point)) == []
    wait_for(lambda: processes_of_sessions({node.pid}) == [])


def test_leadership_is_handed_over_by_a_leader_that_stops_and_nobody_sees_an_error(make_cluster):
    c = make_cluster()
    for _ in range(2):
        leader = c.leader()
        others = [i for i in c.nodes() if i != leader]
        with Load(c, ["append"] * 2 + ["pwrite"] * 2, nodes=others) as load:
            load.wait_for_progress(20)
            began = time.monotonic()
            c.kill(leader, "TERM")
            assert time.monotonic() - began < 1 + ROOM
            load.wait_for_progress(20)
        assert load.errors() == set()
        load.check(others)
        assert f"n{leader}" not in [c.status(i)["leader"] for i in others]
        c.start(leader)
        c.run("rm -r load", others[0])


def test_writers_on_a_node_that_stops_are_answered(make_cluster):
    c = make_cluster()
    victim = c.followers()[0]
    with Load(c, ["append"] * 4, nodes=[victim]) as load:
        load.wait_for_progress(20)
        c.kill(victim, "TERM")
        c.start(victim)
        load.wait_for_progress(20)
    load.check()


def test_a_mount_in_use_does_not_keep_a_node_from_stopping(make_cluster):
    c = make_cluster(nodes=1)
    c.mkdir(1, "d")
    c.write(1, "d/f", "x")
    users = [
        subprocess.Popen(["sleep", "1000"], cwd=c.path(1, "d"), start_new_session=True),
        subprocess.Popen(["bash", "-c", f"exec 3<'{c.path(1, 'd/f')}' 4>>'{c.path(1, 'd/f')}'; echo; sleep 1000"],
                         stdout=subprocess.PIPE, start_new_session=True),
    ]
    try:
        assert users[1].stdout.readline()
        began = time.monotonic()
        c.kill(1, "TERM")
        assert time.monotonic() - began < 1 + ROOM
        assert mounts_below(c.dir) == []
        assert "stopped" in c.log(1)
        wait_for(lambda: not pokers_below(c.dir), 5, "the poker ends")
        for user in users:
            assert user.poll() is None  # nobody was killed for it
        c.start(1)
        assert c.read(1, "d/f") == b"x"
        # Who was there before the restart has lost his place.
        cwd = f"/proc/{users[0].pid}/cwd/f"
        with pytest.raises(OSError) as caught:
            bounded(lambda: os.stat(cwd))
        assert caught.value.errno == errno.ENOTCONN
    finally:
        for user in users:
            os.killpg(user.pid, signal.SIGKILL)
            user.wait(10)


def test_a_node_without_a_quorum_stops_and_answers_who_waits(make_cluster):
    c = make_cluster(flags=["--request-timeout", "60000"])
    c.write(1, "f", "x")
    for i in (2, 3):
        os.kill(c.pid(i), signal.SIGKILL)
    wait_for(lambda: c.status(1)["leader"] == "none")
    writer = subprocess.Popen(["bash", "-c", f"echo y > '{c.path(1, 'f')}'"], stderr=subprocess.PIPE, start_new_session=True)
    reader = subprocess.Popen(["cat", c.path(1, "f")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    time.sleep(0.3)
    assert writer.poll() is None and reader.poll() is None
    began = time.monotonic()
    c.kill(1, "TERM")
    for process in (writer, reader):
        process.wait(ROOM)
        assert process.returncode != 0
    assert time.monotonic() - began < 1 + ROOM
    assert c.log(1).endswith("info n1: stopped\n")
    assert mounts_below(c.mnt(1)) == []


def test_a_mount_that_somebody_takes_away_stops_the_node(make_cluster):
    c = make_cluster()
    c.write(1, "f", "x")
    victim = c.followers()[0]
    run(["umount", c.mnt(victim)])
    wait_for(lambda: is_gone(c, victim))
    assert "the mount is gone" in c.log(victim) and c.log(victim).endswith("stopped\n")
    c.start(victim)
    assert c.read(victim, "f") == b"x"


# ---- dead mounts ----

def test_a_dead_mount_hangs_nobody_and_the_next_start_clears_it(make_cluster):
    c = make_cluster()
    victim = c.followers()[0]
    c.write(victim, "f", "x")
    path = c.path(victim, "f")
    ready, answer = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            reading, writing = os.open(path, os.O_RDONLY), os.open(path, os.O_WRONLY | os.O_APPEND)
            os.read(reading, 1)
            os.write(ready[1], b"!")
            os.read(answer[0], 1)
            codes = []
            for use in (lambda: os.pread(reading, 1, 0), lambda: os.write(writing, b"y"), lambda: os.fstat(writing)):
                try:
                    use()
                    codes.append(0)
                except OSError as error:
                    codes.append(error.errno)
            os.write(ready[1], bytes(codes))
        finally:
            os.close(ready[1])
            os._exit(0)
    try:
        look_at_a_dead_mount(c, victim, ready, answer)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for end in (*ready, *answer):
            os.close(end)


def look_at_a_dead_mount(c, victim, ready, answer):
    assert os.read(ready[0], 1) == b"!"
    wait_for(lambda: len(pokers_below(c.dir)) == 3)
    c.kill(victim)
    wait_for(lambda: len(pokers_below(c.dir)) == 2, 10, "the poker follows its node")
    # (A stat of the mount itself may be answered from the kernel's memory for 50 ms.)
    for use in (os.listdir, lambda p: os.stat(os.path.join(p, "f")), lambda p: open(os.path.join(p, "f"), "a")):
        with pytest.raises(OSError) as caught:
            c.call(victim, use, timeout=ROOM)
        assert caught.value.errno == errno.ENOTCONN
    assert mounts_below(c.dir).count(c.mnt(victim)) == 1
    c.start(victim)
    assert "clearing the dead mount" in c.log(victim)
    assert mounts_below(c.dir).count(c.mnt(victim)) == 1
    assert c.read(victim, "f") == b"x"
    os.write(answer[1], b"!")  # the descriptors of before
    assert os.read(ready[0], 3) == bytes([errno.ENOTCONN] * 3)


def test_who_waits_on_a_node_that_is_killed_gets_an_error_at_once(make_cluster):
    c = make_cluster(flags=["--request-timeout", "60000"])
    c.write(1, "f", "x")
    for i in (2, 3):
        os.kill(c.pid(i), signal.SIGKILL)
    wait_for(lambda: c.status(1)["leader"] == "none")
    waiting = [
        subprocess.Popen(["bash", "-c", f"cd '{c.mnt(1)}'; {command}"], stderr=subprocess.DEVNULL, start_new_session=True)
        for command in ("cat f", "echo y >> f", "echo z >> f", "mkdir d", "mkdir e", "ls")]
    time.sleep(0.3)
    assert all(process.poll() is None for process in waiting)
    os.kill(c.pid(1), signal.SIGKILL)
    for process in waiting:
        assert process.wait(ROOM) != 0


def test_many_dead_mounts_on_one_place_are_all_cleared(make_cluster):
    c = make_cluster(nodes=1)
    c.write(1, "f", "x")
    for _ in range(4):
        c.kill(1)
        c.start(1)
    assert mounts_below(c.dir) == [c.mnt(1)]
    assert c.read(1, "f") == b"x"


def test_a_poker_that_dies_is_started_again(make_cluster):
    c = make_cluster(nodes=1)
    c.write(1, "f", "x")
    before = wait_for(lambda: pokers_below(c.dir))
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    after = wait_for(lambda: [pid for pid in pokers_below(c.dir) if pid not in before])
    assert after and c.read(1, "f") == b"x"


# ---- starting ----

def test_a_second_start_is_refused_while_the_first_runs(make_cluster):
    c = make_cluster()
    victim = c.followers()[0]
    c.write(victim, "f", "x")
    arguments = c.arguments(victim)
    for _ in range(2):
        result = run(arguments, check=False)
        assert result.returncode == 1
        assert "is in use by another keelfs process: stop that one first" in result.stderr
    assert mounts_below(c.dir).count(c.mnt(victim)) == 1
    assert c.read(victim, "f") == b"x"


def test_a_member_that_lost_its_data_is_refused_and_the_cluster_goes_on(make_cluster):
    c = make_cluster()
    lost = c.followers()[0]
    others = [i for i in c.nodes() if i != lost]
    c.write(lost, "f", "x")
    arguments = c.arguments(lost)
    c.kill(lost)
    data = os.path.join(c.dir, f"n{lost}", "data")
    os.rename(data, data + ".gone")
    if "--bootstrap" not in arguments:
        arguments.insert(1, "--bootstrap")
    with Load(c, ["append"] * 2, nodes=others) as load:
        for _ in range(2):  # the first time it makes a new directory, the second time it finds that
            result = run(arguments, 30, check=False)
            assert result.returncode == 1, result.stderr
            last = [line for line in result.stderr.splitlines() if " error " in line][-1]
            assert f"n{lost} has lost its data: remove it and add it again" in last
            assert mounts_below(c.mnt(lost)) == []
        load.wait_for_progress(10)
    assert load.errors() == set()
    load.check(others)
    # It stops at the first refusal: not everybody need have been asked.
    assert any(f"n{lost} has lost its data" in c.log(i) for i in others)
    # What it had before is still good.
    shutil.rmtree(data)
    os.rename(data + ".gone", data)
    c.start(lost)
    assert c.read(lost, "f") == b"x"
    load.check()


@pytest.mark.parametrize("foreign", [1, 2, 3])
def test_a_node_with_another_token_at_a_members_address_is_told_by_all_and_disturbs_nobody(make_cluster, foreign):
    """Whichever side dials, both logs say it. It has no quorum; if all members have refused it, it stops."""
    c = make_cluster()
    others = [i for i in c.nodes() if i != foreign]
    arguments = c.arguments(foreign)
    c.kill(foreign, "TERM")
    c.write(others[0], "f", "x")
    arguments[arguments.index("--cluster-token") + 1] = "another"
    arguments[arguments.index("--data-dir") + 1] = os.path.join(c.dir, "other-data")
    if "--bootstrap" not in arguments:
        arguments.insert(1, "--bootstrap")
    terms = {i: c.status(i)["term"] for i in others}
    with open(os.path.join(c.dir, "foreign-log"), "w+") as log:
        node = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True)

        def told():
            log.seek(0)
            text = log.read()
            return all(any(f"n{i} " in line and "check --cluster-token" in line for line in text.splitlines()) and
                       any(f"n{foreign} " in line and "check --cluster-token" in line for line in c.log(i).splitlines())
                       for i in others)

        try:
            wait_for(told, 10)
            c.write(others[1], "f", "y")
        finally:
            node.terminate()
            assert node.wait(20) in (0, 1)
    for i in others:
        assert c.status(i)["term"] == terms[i]
    c.start(foreign)
    assert c.read(foreign, "f") == b"y"


def test_relative_paths_and_a_log_directory_elsewhere_survive_a_restart(tmp_path):
    (tmp_path / "m").mkdir()
    arguments = [BINARY, "--name", "n1", "--data-dir", "d", "--wal-dir", "w", "--bootstrap",
                 "--initial-cluster", f"n1=127.0.0.1:{14000 + os.getpid() % 1900}", "m"]
    for round_ in range(2):
        node = subprocess.Popen(arguments, cwd=tmp_path, stdin=subprocess.DEVNULL, start_new_session=True,
                                stderr=open(tmp_path / "log", "a"))
        try:
            wait_for(lambda: run(["bash", "-c", f"echo {round_} >> m/f"], cwd=tmp_path, check=False).returncode == 0
                     and mounts_below(str(tmp_path)))
        finally:
            node.terminate()
            assert node.wait(20) == 0
        assert os.listdir(tmp_path / "w") and not os.path.exists(tmp_path / "d" / "wal")
    for name in os.listdir(tmp_path / "m"):
        os.unlink(tmp_path / "m" / name)  # written before the mount was there
    log = (tmp_path / "log").read_text()
    assert "torn" not in log.replace(str(tmp_path), "")


def test_restarts_one_behind_the_other_do_not_get_in_each_others_way(make_cluster):
    c = make_cluster(nodes=1)
    c.write(1, "f", "x")
    for n in range(6):
        os.kill(c.pid(1), signal.SIGKILL if n % 2 else signal.SIGTERM)
        wait_for(lambda: is_gone(c, 1))
        c.start(1)
        assert c.read(1, "f") == b"x"


def test_a_node_that_was_stopped_for_a_while_goes_on_as_a_follower(make_cluster):
    """SIGSTOP, as a paused virtual machine: the others go on, and afterwards it is current again."""
    c = make_cluster()
    leader = c.leader()
    other = next(i for i in c.nodes() if i != leader)
    c.write(leader, "f", "0")
    c.kill(leader, "STOP")
    c.write(other, "f", "1", timeout=20)
    time.sleep(1)
    c.write(other, "f", "2", timeout=20)
    c.kill(leader, "CONT")
    assert wait_for(lambda: c.read(leader, "f") == b"2")
    assert c.status(leader)["role"] in ("follower", "leader")
    c.write(leader, "f", "3")
    assert c.read(other, "f") == b"3"


def test_a_leader_that_was_stopped_never_answers_with_old_data(make_cluster):
    """Its lease has run out in its sleep: the first read after it must not come from what it had."""
    c = make_cluster()
    for n in range(3):
        leader = c.leader()
        other = next(i for i in c.nodes() if i != leader)
        c.write(leader, "f", f"old {n}")
        os.kill(c.pid(leader), signal.SIGSTOP)
        reader = subprocess.Popen(["cat", c.path(leader, "f")], stdout=subprocess.PIPE, start_new_session=True)
        c.write(other, "f", f"new {n}", timeout=20)
        os.kill(c.pid(leader), signal.SIGCONT)
        # The reader has asked before the write: it may be told either. Who asks now may not.
        assert wait_for(lambda: c.read(leader, "f")) == f"new {n}".encode()
        assert reader.communicate(timeout=20)[0].decode() in (f"old {n}", f"new {n}")
        wait_for(lambda: all(c.status(i)["quorum"] == "yes" for i in c.nodes()))


def test_a_start_waits_for_the_last_thread_of_one_that_was_killed(make_cluster):
    c = make_cluster(nodes=1)
    c.kill(1, "KILL")
    data = os.open(os.path.join(c.dir, "n1", "data"), os.O_RDONLY)
    fcntl.flock(data, fcntl.LOCK_EX)  # what a dying process has, until its last thread is gone
    dying = threading.Timer(0.7, os.close, [data])
    dying.start()
    c.start(1)
    dying.join()
    assert c.status(1)["name"] == "n1"
