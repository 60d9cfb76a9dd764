"""A node on a disk that fails when it is told to: tests/faults stands between the process and its data directory.

A Node is one keelfs process, with its mount and a disk of its own. What the disk does is said by a plan (tests/faults/plan.h), before the start or at any
time later. Writers do one step after the other on the mount, and know what was acknowledged to them.
"""

import collections
import errno
import hashlib
import itertools
import os
import random
import re
import signal
import subprocess

import keel
from hands import Hand
from keel import mounts_below, pokers_below, processes_of_sessions, wait_for

BUILD = os.path.dirname(os.path.dirname(os.path.realpath(keel.BINARY)))
LIBRARY = os.path.join(BUILD, "tests", "faults", "libkeel-faults.so")
KEEL_WAL = os.environ.get("KEEL_WAL", os.path.join(BUILD, "tools", "keel-wal"))
# Small segments, and a history that ends soon: so the disk sees all there is within a few writes.
FLAGS = ["--log-kept", str(2 << 20), "--history", "1s", "--history-revisions", "20"]
# What a data directory may hold when nothing is under way.
SETTLED = re.compile(r"identity|store|store/(data|lock)\.mdb|wal|wal/[0-9a-f]{16}\.wal")
ALL = os.environ.get("KEEL_FAULTS_ALL") == "1"
_addresses = itertools.count()

Call = collections.namedtuple("Call", "number name file bytes what")


def new_address():
    """On the loopback, of this process's own."""
    number = next(_addresses)
    return f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.{number % 250 + 1}:{7431 + number // 250}"


def environment(own, disk):
    """That of a process on the failing disk."""
    assert os.path.exists(LIBRARY), f"there is no {LIBRARY}: run tools/build first, or set KEELFS"
    return {"LD_PRELOAD": LIBRARY, "KEEL_FAULTS": own, "KEEL_FAULTS_DISK": disk}


def write_plan(own, lines):
    """Replaces the plan at once; no lines: nothing happens any more."""
    with open(os.path.join(own, "plan.new"), "w") as file:
        file.writelines(f"{line}\n" for line in lines)
    os.rename(os.path.join(own, "plan.new"), os.path.join(own, "plan"))


def read_calls(own, since=0):
    """The calls that were counted, but for the first ones."""
    try:
        with open(os.path.join(own, "calls")) as file:
            lines = file.read().split("\n")[since:-1]
    except FileNotFoundError:
        return []
    return [Call(int(number), name, file, int(size), what) for number, name, file, size, what in map(str.split, lines)]


def kind_of(call):
    """The file, as a pattern for a plan: of the log all segments are one."""
    return "data/wal/*" if call.file.endswith(".wal") else call.file


class Node:
    def __init__(self, directory, name="n1", members=None, flags=FLAGS, extra=()):
        self.dir, self.name = os.path.realpath(directory), name
        self.disk, self.own, self.mnt, self.log_file = (os.path.join(self.dir, x) for x in ("disk", "own", "mnt", "log"))
        self.data = os.path.join(self.disk, "data")
        for path in self.disk, self.own, self.mnt:
            os.makedirs(path)
        self.address = new_address()
        self.arguments = ["--name", name, "--data-dir", self.data, "--listen-peer", self.address, "--request-timeout", "10000", *flags, *extra]
        if not any(word in self.arguments for word in ("--bootstrap", "--join")):
            self.arguments += ["--bootstrap", "--initial-cluster", f"{name}={self.address}"]
        self.process, self.sessions, self.writers = None, set(), []

    # ---- life ----

    def start(self, *plan, faults=True):
        """Starts it, and waits until it is up, or has ended. Whether it is up."""
        write_plan(self.own, plan)
        begin = self.log_size()
        with open(self.log_file, "ab") as log:
            self.process = subprocess.Popen(
                [keel.BINARY, *self.arguments, self.mnt], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **(environment(self.own, self.disk) if faults else {})})
        self.sessions.add(self.process.pid)
        self.begin = begin
        wait_for(lambda: self.is_over() or " leads\n" in self.last_log() or " the leader is " in self.last_log(), what="up, or over", pause=0.002)
        return not self.is_over()

    def plan(self, *lines):
        write_plan(self.own, lines)

    def is_over(self):
        return self.process is None or self.process.poll() is not None

    def wait_end(self, bound=20):
        """Its exit code."""
        wait_for(self.is_over, bound, "the node ends", pause=0.002)
        return self.process.returncode

    def was_killed(self):
        return self.is_over() and self.process.returncode == -signal.SIGKILL

    def stop(self, sign=signal.SIGTERM):
        if not self.is_over():
            self.process.send_signal(sign)
        return self.wait_end()

    def log_size(self):
        return os.path.getsize(self.log_file) if os.path.exists(self.log_file) else 0

    def last_log(self):
        """What it has said since its last start."""
        with open(self.log_file, errors="replace") as file:
            file.seek(self.begin)
            return file.read()

    def clean(self):
        """Ends all there is of it; never hangs."""
        if not self.is_over():
            self.process.kill()
            self.process.wait(10)
        for point in mounts_below(self.dir):
            subprocess.run(["umount", "-l", point], check=False)
        for writer in self.writers:
            writer.hand.drop()
        self.writers = []
        wait_for(lambda: not processes_of_sessions(self.sessions) and not pokers_below(self.dir), 10, "nothing is left behind")

    # ---- its mount and its disk ----

    def add_writer(self):
        self.writers.append(Writer(self.mnt, f"w{len(self.writers)}"))

    def status(self):
        """From a process that may hang, as keel.bounded's."""
        with open(os.path.join(self.mnt, "@keel/status")) as file:
            lines = file.read().splitlines()
        return dict(line.split(": ", 1) for line in lines)

    def tell(self, name, text=None):
        """Writes to a file in @keel, by default the revision that there is. The error, if the node is not over."""
        def write():
            with open(os.path.join(self.mnt, "@keel", name), "w") as file:
                file.write(text or self.status()["revision"])

        try:
            keel.bounded(write, 20)
        except OSError as error:
            return None if self.is_over_by(error.errno) else error
        return None

    def is_over_by(self, error):
        """Whether a request had this error because the node has ended, or is about to."""
        if error not in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO):
            return False
        self.wait_end()
        return True

    def calls(self, since=0):
        return read_calls(self.own, since)

    def wait_for_call(self, name, pattern, since, count=1, or_else=lambda: False):
        """Until the disk has seen so many of these calls after the first `since` of all, or the node is over, or something else has come about."""
        def come():
            return sum(c.name in name.split("|") and re.fullmatch(pattern, c.file) is not None for c in self.calls(since)) >= count

        wait_for(lambda: self.is_over() or come() or or_else(), what=f"{name} of {pattern}", pause=0.003)

    def work(self, steps):
        """Each writer does its steps, all at once; none of them when the node is over. It may end in the middle of them: that alone is an error's reason."""
        if self.is_over():
            return
        for writer, some in zip(self.writers, steps):
            writer.begin(some)
        errors = [writer.end() for writer in self.writers[:len(steps)]]
        assert all(error is None or self.is_over_by(error) for error in errors), errors

    def check(self):
        """All that was acknowledged is there, and nothing is left over."""
        for writer in self.writers:
            writer.check()
        # A defragmentation may have begun by itself: for a moment.
        wait_for(self.is_settled, what=f"nothing is left over: {self.files()}")

    def is_settled(self):
        return all(SETTLED.fullmatch(name) for name in self.files())

    def goes_on(self):
        """False: it is over, or about to be. Otherwise all is checked."""
        if self.is_over():
            return False
        try:
            self.check()
        except OSError as error:
            if self.is_over_by(error.errno):
                return False
            raise
        return True

    def files(self):
        return [os.path.relpath(os.path.join(at, name), self.data) for at, dirs, files in os.walk(self.data) for name in dirs + files]

    def check_log(self):
        """What keel-wal says of the log of a node that does not run: sound, or torn at its end. (Or that first the store has to be mended by a start.)"""
        if not os.path.exists(os.path.join(self.data, "identity")):
            return
        result = keel.run([KEEL_WAL, "check", self.data], check=False)
        assert result.returncode in (0, 1) or "a start of the node mends that" in result.stderr, result.stdout + result.stderr


# ---- writers ----


def content(seed, size):
    return random.Random(seed).randbytes(size)


def _put(path, data, flags):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    try:
        assert os.write(fd, data) == len(data)
    except OSError:
        try:
            os.close(fd)
        except OSError:
            pass
        raise
    os.close(fd)


def _do(place, kind, *arguments):
    if kind == "rename":
        os.rename(*(os.path.join(place, name) for name in arguments))
    elif kind == "unlink":
        os.unlink(os.path.join(place, arguments[0]))
    else:
        name, seed, size = arguments
        _put(os.path.join(place, name), content(seed, size), os.O_TRUNC if kind == "put" else os.O_APPEND)


def _do_all(place, steps):
    """How many were done, and the error of the one that was not."""
    for done, step in enumerate(steps):
        try:
            _do(place, *step)
        except OSError as error:
            return done, error.errno
    return len(steps), None


def look(place):
    found = {}
    for entry in os.scandir(place):
        with open(entry.path, "rb") as file:
            found[entry.name] = hashlib.sha1(file.read()).hexdigest()
    return found


def _after(files, kind, *arguments):
    files = dict(files)
    if kind == "rename":
        files[arguments[1]] = files.pop(arguments[0])
    elif kind == "unlink":
        del files[arguments[0]]
    else:
        name, seed, size = arguments
        files[name] = (b"" if kind == "put" else files.get(name, b"")) + content(seed, size)
    return files


class Writer:
    """In a directory of its own. Steps: (put | append, NAME, SEED, SIZE), (rename, NAME, NAME), (unlink, NAME)."""

    def __init__(self, mount, name):
        self.place = os.path.join(mount, name)
        self.hand = Hand()
        self.hand.mkdir(self.place)
        self.files, self.unsure, self.acknowledged = {}, None, 0

    def begin(self, steps):
        self.steps = steps
        self.hand.begin(_do_all, self.place, steps)

    def end(self):
        """The error that it came to, or None."""
        done, error = self.hand.end(40)
        for step in self.steps[:done]:
            self.files = _after(self.files, *step)
        self.acknowledged += done
        if error is not None:
            self.unsure = self.steps[done]
        return error

    def may_be(self):
        """What the directory may hold: all that was acknowledged, and what was on its way or not."""
        yield self.files
        if self.unsure is None:
            return
        yield _after(self.files, *self.unsure)
        if self.unsure[0] in ("put", "append"):
            yield {**self.files, self.unsure[1]: b"" if self.unsure[0] == "put" else self.files.get(self.unsure[1], b"")}

    def check(self):
        """Compares, and goes on from what is there."""
        there = self.hand(look, self.place)
        for files in self.may_be():
            if there == {name: hashlib.sha1(data).hexdigest() for name, data in files.items()}:
                self.files, self.unsure = files, None
                return
        expected = {name: hashlib.sha1(data).hexdigest() for name, data in self.files.items()}
        raise AssertionError(
            f"acknowledged writes are lost in {self.place}: {sorted(set(expected.items()) ^ set(there.items()))}, unsure: {self.unsure}")


def small_steps(dice, files, count):
    """Small ones of all kinds, given the names that there are."""
    names, steps = set(files), []
    for _ in range(count):
        name, seed = f"f{dice.randrange(12)}", dice.randrange(1 << 30)
        kind = dice.choice(["put", "put", "append", "append", "rename", "unlink"])
        if kind in ("rename", "unlink") and name not in names:
            kind = "put"
        if kind == "rename":
            other = f"f{dice.randrange(12)}"
            if other == name:
                continue
            steps.append(("rename", name, other))
            names.discard(name)
            names.add(other)
        elif kind == "unlink":
            steps.append(("unlink", name))
            names.discard(name)
        else:
            steps.append((kind, name, seed, dice.randrange(1, 3000)))
            names.add(name)
    return steps


def large_steps(dice, count, names=6):
    """A checkpoint for every five, a segment for every two."""
    return [("put", f"large{dice.randrange(names)}", dice.randrange(1 << 30), 900_000) for _ in range(count)]


# ---- which calls there are, and which of them are to be hit ----


Point = collections.namedtuple("Point", "name file number")


def points_of(calls):
    """Each call, by its name, its kind of file and its number among those."""
    seen = collections.Counter()
    points = []
    for call in calls:
        key = call.name, kind_of(call)
        seen[key] += 1
        points.append(Point(*key, seen[key]))
    return points


def some_of(points, verbs, dice, more):
    """(verb, point): for each kind of call its first with each verb; of all others so many, by chance. All with KEEL_FAULTS_ALL=1."""
    every = [(verb, point) for point in points for verb in verbs]
    if ALL:
        return every
    first = [pair for pair in every if pair[1].number == 1]
    rest = [pair for pair in every if pair[1].number > 1]
    return first + dice.sample(rest, min(more, len(rest)))


def line_of(verb, point):
    return f"{verb} {point.number} {point.name} {point.file}"
