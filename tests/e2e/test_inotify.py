"""Changes made on one node, as inotify watchers see them on another: exactly what a watcher of a local directory sees of the same
changes. The references are made anew in each test, in a directory of this machine, with the same program and the same calls."""

import errno
import os
import random
import re
import select
import shutil
import signal
import subprocess
import tempfile

import pytest

from keel import bounded, run, wait_for

WRITER, OTHER_WRITER, READER = 1, 2, 3


# ---- watching ----

class Watcher:
    """inotifywait -m -r on a directory, and on some things in it by themselves. Its lines come out relative to the directory, with
    cookies numbered."""

    def __init__(self, directory, *things):
        self.directory = directory
        self.out = tempfile.TemporaryFile()
        self.err = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            ["inotifywait", "-m", "-r", "--format", "%w|%f|%e|%c", directory,
             *(os.path.join(directory, thing) for thing in things)],
            stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err)
        wait_for(lambda: b"Watches established" in self._all(self.err), what="watches")

    @staticmethod
    def _all(file):
        return os.pread(file.fileno(), 1 << 24, 0)

    def lines(self):
        cookies, found = {"0": "0"}, []
        for line in self._all(self.out).decode().splitlines():
            where, name, event, cookie = line.split("|")
            number = cookies.setdefault(cookie, str(len(cookies)))
            found.append(f"{os.path.relpath(where, self.directory)} {name} {event} {number}")
        return found

    def until(self, name, bound=20):
        """The lines before that of the creation of `name`, once it is there."""
        def before():
            lines = self.lines()
            at = [i for i, line in enumerate(lines) if f" {name} CREATE" in line]
            return lines[:at[0]] if at else None
        return wait_for(lambda: before() is not None and [before()], bound,
                        f"creation of {name}; so far {self.lines()}")[0]

    def close(self):
        self.process.kill()
        self.process.wait(20)
        self.out.close()
        self.err.close()


class Watchers:
    def __init__(self):
        self.all = []

    def __call__(self, directory, *things):
        self.all.append(Watcher(directory, *things))
        return self.all[-1]


@pytest.fixture
def watch():
    watchers = Watchers()
    yield watchers
    for watcher in watchers.all:
        watcher.close()


@pytest.fixture
def local():
    """An ordinary directory, on tmpfs where there is one."""
    directory = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    yield os.path.realpath(directory)
    shutil.rmtree(directory)


# ---- the changes: each a function of a directory ----

def put(path, data=b"", flags=os.O_CREAT):
    descriptor = os.open(path, os.O_WRONLY | flags, 0o644)
    try:
        if data:
            os.write(descriptor, data)
    finally:
        os.close(descriptor)


def file_f(d):
    put(f"{d}/f", b"one")


def files_f_g(d):
    put(f"{d}/f", b"one")
    put(f"{d}/g", b"two")


def dir_s(d):
    os.mkdir(f"{d}/s")


def file_f_dir_s(d):
    file_f(d)
    dir_s(d)


def nothing(d):
    pass


def symlink_l(d):
    os.symlink("anywhere", f"{d}/l")


ROWS = {
    "create": (nothing, lambda d: put(f"{d}/f"), []),
    "create with content": (nothing, lambda d: put(f"{d}/f", b"one"), []),
    "overwrite": (file_f, lambda d: put(f"{d}/f", b"two", 0), ["f"]),
    "append": (file_f, lambda d: put(f"{d}/f", b"more", os.O_APPEND), ["f"]),
    "unlink": (file_f, lambda d: os.unlink(f"{d}/f"), ["f"]),
    "mkdir": (nothing, lambda d: os.mkdir(f"{d}/s"), None),
    "rmdir": (dir_s, lambda d: os.rmdir(f"{d}/s"), []),
    "rename": (file_f, lambda d: os.rename(f"{d}/f", f"{d}/g"), ["f"]),
    "rename across": (file_f_dir_s, lambda d: os.rename(f"{d}/f", f"{d}/s/f"), ["f"]),
    "rename over": (files_f_g, lambda d: os.rename(f"{d}/f", f"{d}/g"), ["f", "g"]),
    "chmod": (file_f, lambda d: os.chmod(f"{d}/f", 0o600), ["f"]),
    "chown": (file_f, lambda d: os.chown(f"{d}/f", 1, 1), ["f"]),
    "utimes": (file_f, lambda d: os.utime(f"{d}/f", (1, 1)), ["f"]),
    "chmod of a directory": (dir_s, lambda d: os.chmod(f"{d}/s", 0o700), []),
    "symlink": (nothing, symlink_l, []),
    "unlink of a symlink": (symlink_l, lambda d: os.unlink(f"{d}/l"), []),
}


def slug(name):
    return re.sub(r"[^a-z]+", "-", name)


@pytest.mark.sanitizer
@pytest.mark.parametrize("row", ROWS, ids=slug)
def test_a_change_elsewhere_raises_the_events_of_a_local_one(shared_cluster, watch, local, row):
    c = shared_cluster
    before, change, things = ROWS[row]
    directory = slug(row)
    c.mkdir(WRITER, directory)
    bounded(lambda: before(local))
    bounded(lambda: before(c.path(WRITER, directory)))
    things = things if things is not None else []
    reference = watch(local, *things)
    seen = watch(c.path(READER, directory), *things)
    own = watch(c.path(WRITER, directory), *things)
    for place in local, c.path(WRITER, directory):
        bounded(lambda: change(place))
        bounded(lambda: os.symlink("-", f"{place}/end"))
    expected = without_races(row, reference.until("end"))
    assert expected
    assert without_races(row, seen.until("end")) == expected
    # And nothing is raised a second time where it was made.
    assert without_races(row, own.until("end")) == expected


def without_races(row, lines):
    """inotifywait -r looks into a new directory by itself, sooner or later."""
    return [line for line in lines if row != "mkdir" or line.startswith(". s CREATE")]


class RandomChanges:
    """Changes that are possible one after another, as functions of a directory. Content of existing files is left out: waiting
    changes of it become one."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.names = [f"{d}/{n}" for d in "ab" for n in range(4)]
        self.modes = {}  # of what is there

    def next(self):
        name, other = self.rng.choice(self.names), self.rng.choice(self.names)
        if name not in self.modes:
            self.modes[name] = 0o644
            return lambda d: put(f"{d}/{name}", b"x")
        if self.rng.randrange(3) == 0:
            del self.modes[name]
            return lambda d: os.unlink(f"{d}/{name}")
        if name == other:
            mode = self.modes[name] = self.modes[name] ^ 0o40
            return lambda d: os.chmod(f"{d}/{name}", mode)
        self.modes[other] = self.modes.pop(name)
        return lambda d: os.rename(f"{d}/{name}", f"{d}/{other}")


def test_changes_of_two_nodes_arrive_in_revision_order(shared_cluster, watch, local):
    c = shared_cluster
    c.mkdir(WRITER, "order")
    for place in local, c.path(WRITER, "order"):
        bounded(lambda: [os.mkdir(f"{place}/{d}") for d in "ab"])
    reference, seen = watch(local), watch(c.path(READER, "order"))
    changes = RandomChanges(20261129)
    for number in range(150):
        change = changes.next()
        bounded(lambda: change(local))
        bounded(lambda: change(c.path((WRITER, OTHER_WRITER)[number % 2], "order")))
    for place in local, c.path(WRITER, "order"):
        bounded(lambda: os.symlink("-", f"{place}/end"))
    assert seen.until("end", 60) == reference.until("end")


def change_at_random(rng, directory, count):
    """Creates, removes and renames whatever is there, beside others who do the same."""
    for _ in range(count):
        name, other = (f"{directory}/{rng.randrange(3)}" for _ in range(2))
        kind = rng.randrange(3)
        try:
            if kind == 0:
                put(name, rng.choice([b"", b"x"]), os.O_CREAT | rng.choice([0, os.O_EXCL]))
            elif kind == 1:
                os.unlink(name)
            else:
                os.rename(name, other)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EEXIST, errno.ESTALE):
                raise


class Worker:
    """A process that makes random changes in a directory whenever it is told to."""

    def __init__(self, directory, seed):
        self.orders, orders = os.pipe()
        answers, self.answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(orders)
                rng = random.Random(seed)
                while os.read(self.orders, 1):
                    change_at_random(rng, directory, 4)
                    os.write(self.answers, b".")
            finally:
                os._exit(1)
        os.close(self.orders)
        os.close(self.answers)
        self.orders, self.answers = orders, answers

    def go(self):
        os.write(self.orders, b".")

    def wait(self):
        assert select.select([self.answers], [], [], 20)[0]
        assert os.read(self.answers, 1) == b"."

    def close(self):
        os.close(self.orders)
        os.close(self.answers)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def names_left(lines):
    """What somebody believes to be in a directory who has watched it since it was empty."""
    names = set()
    for line in lines:
        _, name, event, _ = line.split(" ")
        if event in ("CREATE", "MOVED_TO"):
            names.add(name)
        elif event in ("DELETE", "MOVED_FROM"):
            names.discard(name)
    return sorted(names)


def test_watchers_on_all_nodes_know_what_is_there_after_each_tumult(shared_cluster, watch):
    c = shared_cluster
    c.mkdir(WRITER, "tumult")
    watchers = [watch(c.path(i, "tumult")) for i in c.nodes()]
    workers = [Worker(c.path(i, "tumult"), i) for i in c.nodes()]
    try:
        for turn in range(100):
            for worker in workers:
                worker.go()
            for worker in workers:
                worker.wait()
            there = c.listdir(WRITER, "tumult")
            for i, watcher in zip(c.nodes(), watchers):
                wait_for(lambda: names_left(watcher.lines()) == there, 10,
                         f"n{i}'s watcher to know of {there} alone, in turn {turn}")
    finally:
        for worker in workers:
            worker.close()


@pytest.mark.parametrize("node", [WRITER, READER], ids=["on-its-own-node", "elsewhere"])
def test_the_expiry_of_a_lease_is_a_deletion(shared_cluster, watch, local, node):
    c = shared_cluster
    directory = f"expiry-{node}"
    c.mkdir(WRITER, directory)
    bounded(lambda: put(f"{local}/f", b"mine"))
    c.write(WRITER, f"{directory}/f@ttl=2", b"mine")
    reference, seen = watch(local, "f"), watch(c.path(node, directory), "f")
    bounded(lambda: os.unlink(f"{local}/f"))
    # Asked elsewhere: a look-up that is under way in the watched mount holds the inode, and DELETE_SELF back.
    asked = next(i for i in c.nodes() if i != node)
    wait_for(lambda: not c.exists(asked, f"{directory}/f"))
    for place in local, c.path(WRITER, directory):
        bounded(lambda: os.symlink("-", f"{place}/end"))
    expected = reference.until("end")
    assert expected
    assert seen.until("end") == expected


# ---- safety ----

def test_a_foreign_file_mounted_over_a_name_is_not_touched(shared_cluster, watch, local):
    c = shared_cluster
    c.mkdir(WRITER, "foreign")
    c.write(WRITER, "foreign/f", b"ours")
    theirs, over = f"{local}/theirs", c.path(READER, "foreign/f")
    put(theirs, b"theirs, and longer")
    os.utime(theirs, (1, 1))
    seen = watch(c.path(READER, "foreign"))
    run(["mount", "--bind", theirs, over])
    try:
        c.write(WRITER, "foreign/f", b"o", flags=0)
        c.call(WRITER, lambda path: os.chmod(path, 0o600), "foreign/f")
        c.call(WRITER, lambda path: os.symlink("-", path), "foreign/end")
        seen.until("end")
        with open(theirs, "rb") as file:
            assert file.read() == b"theirs, and longer"
        assert os.stat(theirs).st_mtime == 1
        assert os.stat(theirs).st_mode & 0o777 == 0o644
    finally:
        run(["umount", over])


def test_a_change_of_a_running_program_is_reported(shared_cluster, watch):
    c = shared_cluster
    c.mkdir(WRITER, "running")
    with open(shutil.which("sleep"), "rb") as file:
        c.write(WRITER, "running/program", file.read())
    c.call(WRITER, lambda path: os.chmod(path, 0o755), "running/program")
    program = subprocess.Popen([c.path(READER, "running/program"), "60"])
    try:
        seen = watch(c.path(READER, "running"))
        c.append(WRITER, "running/program", b"x")
        c.call(WRITER, lambda path: os.symlink("-", path), "running/end")
        lines = seen.until("end")
        assert ". program MODIFY 0" in lines
        assert not any("CLOSE_WRITE" in line for line in lines)
    finally:
        program.kill()
        program.wait(20)


# ---- life and death ----

def poker_of(daemon):
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{name}/comm") as file:
                if parent == daemon and file.read().strip() == "keelfs-poker":
                    return int(name)
        except (OSError, ValueError):
            pass
    return None


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def waits_in_the_kernel(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "D"


def processes_on(mount):
    """Those with a descriptor or their working directory below it, by the text of the links alone."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            links = [f"/proc/{name}/cwd", *(e.path for e in os.scandir(f"/proc/{name}/fd"))]
            if any(os.readlink(link).startswith(mount) for link in links):
                yield int(name)
        except OSError:
            pass


def test_a_killed_poker_comes_back_and_events_go_on(cluster, watch):
    daemon = cluster.pid(READER)
    poker = wait_for(lambda: poker_of(daemon))
    seen = watch(cluster.mnt(READER))
    os.kill(poker, signal.SIGKILL)
    cluster.call(WRITER, lambda path: os.symlink("-", path), "meanwhile")
    cluster.call(WRITER, lambda path: os.symlink("-", path), "end")
    assert seen.until("end") == [". meanwhile CREATE 0"]
    again = wait_for(lambda: poker_of(daemon))
    assert again != poker
    cluster.call(WRITER, lambda path: os.symlink("-", path), "later")
    assert seen.until("later") == [". meanwhile CREATE 0", ". end CREATE 0"]


def test_a_killed_daemon_leaves_nobody_waiting(cluster, watch):
    daemon = cluster.pid(READER)
    poker = wait_for(lambda: poker_of(daemon))
    seen = watch(cluster.mnt(READER))
    holder = subprocess.Popen(["tail", "-f", "/dev/null"], cwd=cluster.mnt(READER))
    try:
        cluster.kill(READER)
        wait_for(lambda: is_gone(poker), what="end of the poker")
        with pytest.raises(OSError) as caught:
            cluster.listdir(READER)
        assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
        assert not any(waits_in_the_kernel(pid) for pid in processes_on(cluster.mnt(READER)))
    finally:
        holder.kill()
        holder.wait(20)
    seen.close()
    cluster.start(READER)
    seen = watch(cluster.mnt(READER))
    cluster.call(WRITER, lambda path: os.symlink("-", path), "end")
    assert seen.until("end") == []


def test_a_poker_has_nothing_but_its_socket(shared_cluster):
    c = shared_cluster
    poker = wait_for(lambda: poker_of(c.pid(READER)))
    wait_for(lambda: os.readlink(f"/proc/{poker}/cwd") == "/", what="an idle poker")
    links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{poker}/fd")]
    assert not any("/dev/fuse" in link or link.startswith(c.dir + "/n3/data") for link in links)
    assert sum(link.startswith("socket:") for link in links) == 1
    with open(f"/proc/{poker}/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    assert int(status["CapEff"], 16) & (1 << 21) == 0  # CAP_SYS_ADMIN
    assert status["NoNewPrivs"] == "1"
