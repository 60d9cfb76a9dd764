"""Without a quorum: what fails and when, what goes on, and that nobody hangs longer than he is told."""

import errno
import os
import signal
import subprocess
import time

import pytest

import keel
from keel import run, wait_for

TIMEOUT = 1.0  # seconds, of all clusters here
FLAGS = ["--request-timeout", "1000"]
# A busy machine is late: generous, but far from another timeout's worth for each caller.
ROOM = 5.0


@pytest.fixture
def alone(make_cluster):
    """A cluster of which only n1 is left, with some files; .since is when it lost the others."""
    c = make_cluster(flags=FLAGS)
    c.mkdir(1, "d")
    for n in range(4):
        c.write(1, f"d/f{n}", f"value {n}\n")
    lose_quorum(c)
    return c


def lose_quorum(c):
    for i in (2, 3):
        os.kill(c.pid(i), signal.SIGKILL)
    c.since = time.monotonic()


def out_of_time(c):
    """Waits until the node has given up waiting."""
    wait_for(lambda: c.status(1)["quorum"].startswith("no since"), 10)
    time.sleep(max(0, c.since + 1.5 * TIMEOUT - time.monotonic()))


def spent(function):
    began = time.monotonic()
    with pytest.raises(OSError) as caught:
        function()
    assert caught.value.errno == errno.ETIMEDOUT
    return time.monotonic() - began


def test_a_write_waits_one_timeout_from_the_loss_and_later_ones_fail_at_once(alone):
    c = alone
    first = spent(lambda: c.write(1, "d/f0", "never", timeout=20))
    assert time.monotonic() - c.since > 0.9 * TIMEOUT, "it did not wait"
    assert first < TIMEOUT + ROOM
    out_of_time(c)
    quick = [
        spent(lambda: c.write(1, "d/f1", "never")),
        spent(lambda: c.append(1, "d/f2", "never")),
        spent(lambda: c.read(1, "d/f1")),
        spent(lambda: c.listdir(1, "d")),
        spent(lambda: c.mkdir(1, "d/new")),
        spent(lambda: c.unlink(1, "d/f3")),
        spent(lambda: c.rename(1, "d/f2", "d/g")),
        spent(lambda: c.write(1, "d/new", "", flags=os.O_CREAT | os.O_EXCL)),
    ]
    # Each may be asked twice by the kernel, but none waits: half a timeout is far off for all but a stalled machine.
    assert sorted(quick)[len(quick) // 2] < TIMEOUT / 2, quick


def test_opening_for_write_fails_already_without_a_quorum(alone):
    c = alone
    out_of_time(c)
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
        spent(lambda: c.call(1, lambda path: os.close(os.open(path, flags)), "d/f0"))
    result = c.run("echo lost > d/f0", 1, check=False)
    assert result.returncode != 0 and os.strerror(errno.ETIMEDOUT) in result.stderr


def test_status_members_and_df_always_answer(alone):
    c = alone

    def all_answer():
        began = time.monotonic()
        text = c.run("cat @keel/status", 1).stdout
        members = c.run("cat @keel/members", 1).stdout
        assert {"status", "members", "transfer"} <= set(c.run("ls @keel", 1).stdout.split())
        assert c.run(f"df {c.mnt(1)}", cwd="/").stdout.splitlines()[1].endswith(c.mnt(1))
        assert len(members.splitlines()) == 3
        assert time.monotonic() - began < ROOM
        return dict(line.split(": ", 1) for line in text.splitlines())

    all_answer()  # while requests would wait
    wait_for(lambda: all_answer()["quorum"].startswith("no since"))
    out_of_time(c)
    status = all_answer()  # while requests fail
    assert status["leader"] == "none"
    assert status["role"] != "leader"


def test_status_answers_while_writers_and_readers_wait(alone):
    c = alone
    waiting = [start(c, "echo x >> d/f0"), start(c, "mkdir d/new"), start(c, "cat d/f1")]
    began = time.monotonic()
    while time.monotonic() - began < 0.5 * TIMEOUT:
        asked = time.monotonic()
        c.status(1)
        assert time.monotonic() - asked < ROOM
    for process in waiting:
        assert process.wait(TIMEOUT + ROOM) != 0


def test_local_reads_go_on_without_a_quorum(make_cluster):
    c = make_cluster(flags=[*FLAGS, "-o", "read=local"])
    c.mkdir(1, "d")
    c.write(1, "d/f", "kept\n")
    lose_quorum(c)
    out_of_time(c)
    assert c.read(1, "d/f") == b"kept\n"
    assert c.listdir(1, "d") == ["f"]
    assert c.stat(1, "d/f").st_size == 5
    assert c.xattr(1, "d/f", "user.keel.version") == "1"
    assert c.read(1, "d/f@stat").startswith(b"revision: ")
    assert c.run("find . -type f | xargs cat", 1).stdout == "kept\n"
    spent(lambda: c.append(1, "d/f", "never"))
    c.up()
    wait_for(lambda: c.append(1, "d/f", "again\n") is None)
    assert c.read(1, "d/f").endswith(b"again\n")


def test_everything_goes_on_by_itself_when_the_quorum_is_back(alone):
    c = alone
    out_of_time(c)
    spent(lambda: c.read(1, "d/f0"))
    c.start(2)
    assert wait_for(lambda: c.read(1, "d/f0")) == b"value 0\n"
    c.write(1, "d/f0", "new")
    assert c.read(2, "d/f0") == b"new"
    assert c.status(1)["quorum"] == "yes"


def test_a_write_in_time_before_the_deadline_succeeds_when_the_quorum_comes_back(make_cluster):
    c = make_cluster(flags=["--request-timeout", "30000"])
    c.write(1, "f", "old")
    lose_quorum(c)
    writer = start(c, "echo new > f")
    time.sleep(1)
    assert writer.poll() is None
    c.start(2)
    assert writer.wait(30) == 0
    assert c.read(2, "f") == b"new\n"
    assert c.revision(2, "f") == c.revision(1, "f")


def test_a_write_that_timed_out_is_done_at_most_once(alone):
    c = alone
    for _ in range(5):
        spent(lambda: c.append(1, "d/f0", "maybe\n", timeout=20))
    c.up()
    wait_for(lambda: c.append(1, "d/f0", "sure\n") is None)
    content = c.read(2, "d/f0")
    assert content.startswith(b"value 0\n") and content.endswith(b"sure\n")
    assert content.count(b"sure\n") == 1
    assert content.count(b"maybe\n") <= 5
    version = 1 + content.count(b"\n") - 1
    for i in c.nodes():
        assert c.read(i, "d/f0") == content
        assert c.xattr(i, "d/f0", "user.keel.version") == str(version)


def start(c, command, node=1):
    return subprocess.Popen(
        ["bash", "-c", f"cd '{c.mnt(node)}' && exec 2>/dev/null; {command}"],
        stdin=subprocess.DEVNULL, start_new_session=True)


def test_writers_that_queue_behind_each_other_are_all_answered_in_one_timeout(alone):
    c = alone
    began = time.monotonic()
    writers = [start(c, "exec 3>>d/f0; echo x >&3") for _ in range(4)]
    makers = [start(c, f"mkdir d/new{n}") for n in range(4)]
    names = [start(c, "cat d/f1") for n in range(4)]
    for process in writers + makers + names:
        assert process.wait(4 * TIMEOUT + ROOM) != 0
    # One after the other, each with a timeout of its own, would be four.
    assert time.monotonic() - began < 3 * TIMEOUT


@pytest.mark.parametrize("command", ["cat d/f0", "echo x >> d/f0", "echo x > d/f0", "mkdir d/new", "ls d"])
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_a_waiting_program(slow_alone, command, sign):
    """The request timeout is a minute here."""
    c = slow_alone
    process = start(c, f"trap - INT; exec 3<&-; {command}")
    time.sleep(0.3)
    assert process.poll() is None, "it did not wait"
    began = time.monotonic()
    os.killpg(process.pid, sign)
    process.wait(ROOM)
    assert process.returncode != 0
    assert time.monotonic() - began < ROOM


@pytest.fixture(scope="module")
def slow_alone():
    binary = os.environ.get("KEELFS", os.path.join(keel.ROOT, "build", "keelfs"))
    assert os.access(binary, os.X_OK)
    c = keel.Cluster(3, ["--request-timeout", "60000"])
    try:
        c.up()
        c.mkdir(1, "d")
        c.write(1, "d/f0", "x")
        lose_quorum(c)
        yield c
    finally:
        c.close()


def test_one_node_of_three_mounts_and_says_that_it_has_no_quorum(make_cluster):
    c = make_cluster(flags=FLAGS)
    c.write(1, "f", "x")
    for i in c.nodes():
        os.kill(c.pid(i), signal.SIGKILL)
    c.start(2)  # returns when its mount answers
    status = c.status(2)
    assert status["quorum"].startswith("no since")
    assert status["stale"] == "yes"
    assert status["leader"] == "none"
    began = time.monotonic()
    spent(lambda: c.read(2, "f", timeout=20))
    spent(lambda: c.write(2, "f", "y", timeout=20))
    assert time.monotonic() - began < 2 * TIMEOUT + ROOM
    c.start(3)
    assert wait_for(lambda: c.read(2, "f")) == b"x"
    status = c.status(2)
    assert (status["quorum"], status["stale"]) == ("yes", "no")


def test_a_first_start_of_one_node_alone_mounts_and_waits_for_the_others():
    c = keel.Cluster(3, FLAGS)
    binary = os.environ.get("KEELFS", os.path.join(keel.ROOT, "build", "keelfs"))
    members = ",".join(f"n{i}=127.0.1.{i}:{18000 + os.getpid() % 1900}" for i in c.nodes())
    mount = os.path.join(c.dir, "n1", "mnt")
    os.makedirs(mount)
    with open(os.path.join(c.dir, "n1", "log"), "w") as log:
        process = subprocess.Popen(
            [binary, "--name", "n1", "--data-dir", os.path.join(c.dir, "n1", "data"), "--bootstrap",
             "--initial-cluster", members, *FLAGS, mount],
            stdin=subprocess.DEVNULL, stderr=log, start_new_session=True)
    c.sessions.add(process.pid)
    try:
        wait_for(lambda: keel.mounts_below(c.dir), 20)
        status = wait_for(lambda: c.status(1))
        assert status["quorum"].startswith("no since") and status["stale"] == "yes"
        assert status["revision"] in ("0", "1")
        spent(lambda: c.write(1, "f", "x", timeout=20))
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    c.close()


def test_ctrl_c_ends_a_shell_loop_that_waits_on_both_sides(alone):
    c = alone
    out_of_time(c)
    result = run(["timeout", "-s", "INT", "1", "bash", "-c", f"while :; do cat '{c.path(1, 'd/f0')}'; done"], check=False)
    assert result.returncode == 124
