"""A cluster for tests: tools/cluster, and access to its mounts that cannot hang the test.

A mount whose node hangs blocks whoever touches it, and not even SIGKILL ends every such wait. So each access to a mount is made in
a child process that is waited for with a bound, and is left behind when that has passed: it ends when the mount is taken down.
"""

import errno
import os
import pickle
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(ROOT, "tools", "cluster")
BINARY = os.environ.get("KEELFS", os.path.join(ROOT, "build", "keelfs"))
KEELCTL = os.environ.get("KEELCTL", os.path.join(os.path.dirname(BINARY), "keelctl"))

# One of these in a node's log fails the test, unless the test has said that it expects it.
SUSPECT = re.compile(
    r"AddressSanitizer|LeakSanitizer|ThreadSanitizer|runtime error:|assertion failed|\bfatal\b"
)


class Hung(Exception):
    """What was done took longer than its bound."""


_left_behind = []


def reap():
    """Collects the children that were left behind and have ended since."""
    for pid in list(_left_behind):
        try:
            done, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            done = pid
        if done:
            _left_behind.remove(pid)


def bounded(function, timeout=10):
    """Calls the function in a child process; its result or exception, or Hung."""
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            answer = (True, function())
        except BaseException as error:  # carried over to the parent
            answer = (False, error)
        try:
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(answer, pipe)
        finally:
            os._exit(0)
    os.close(writer)
    end = time.monotonic() + timeout
    parts = []
    try:
        while True:
            left = end - time.monotonic()
            if left <= 0 or not select.select([reader], [], [], left)[0]:
                os.kill(pid, signal.SIGKILL)
                raise Hung(f"no answer within {timeout} s")
            part = os.read(reader, 1 << 20)
            if not part:
                break
            parts.append(part)
    finally:
        os.close(reader)
        _left_behind.append(pid)
        reap()
    ok, answer = pickle.loads(b"".join(parts))
    if not ok:
        raise answer
    return answer


def as_nobody(function):
    """For Cluster.call: the function with the rights of nobody."""
    def call(path):
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        return function(path)
    return call


def run(command, timeout=20, check=True, cwd=None, env=None, input=None):
    """Runs a command (a list, or a string for bash) and returns it with text output. Hung after the bound; never waits longer."""
    if isinstance(command, str):
        command = ["bash", "-c", command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        # Files, not pipes: somebody who is left behind must not hold us up at the other end.
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if input is not None else subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        if input is not None:
            process.stdin.write(input if isinstance(input, bytes) else input.encode())
            process.stdin.close()
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise Hung(f"{command} did not end within {timeout} s\n{_text(out)}{_text(err)}")
        result = subprocess.CompletedProcess(command, process.returncode, _text(out), _text(err))
    if check and result.returncode != 0:
        raise AssertionError(
            f"{command} ended with {result.returncode}\n{result.stdout}{result.stderr}"
        )
    return result


def _text(file):
    file.seek(0)
    return file.read().decode(errors="replace")


def wait_for(condition, bound=20, what=None, pause=0.02):
    """Waits until the condition is true and returns its value. An OSError or Hung counts as not yet."""
    end = time.monotonic() + bound
    last = None
    while True:
        try:
            value = condition()
            if value:
                return value
            last = value
        except (OSError, Hung) as error:
            last = error
        if time.monotonic() > end:
            raise AssertionError(f"not within {bound} s: {what or condition} (last: {last!r})")
        time.sleep(pause)


def mounts_below(directory):
    """The mount points below a directory, from mountinfo: nothing is touched."""
    found = []
    with open("/proc/self/mountinfo") as table:
        for line in table:
            point = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), line.split()[4])
            if point == directory or point.startswith(directory + "/"):
                found.append(point)
    return found


def _stat_fields(pid):
    """State, parent, group, session … of a process, or None."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def processes_of_sessions(sessions):
    """Processes (no zombies) whose session is one of these."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        fields = _stat_fields(name)
        if fields and fields[0] not in "ZX" and int(fields[3]) in sessions:
            found.append(int(name))
    return found


def pokers_below(directory):
    """Poker processes (each has a session of its own) of mounts below a directory."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                arguments = file.read().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if arguments[1:2] == [b"--poker"] and os.fsdecode(arguments[2]).startswith(directory + "/"):
            found.append(int(name))
    return found


class Cluster:
    """N nodes, numbered from 1, started by tools/cluster in a directory of their own."""

    def __init__(self, nodes=3, flags=()):
        self.count = nodes  # the highest number
        self.removed = set()  # by self.remove
        self.flags = list(flags)
        self.dir = os.path.realpath(tempfile.mkdtemp(prefix=f"keel-e2e-{os.getpid()}-"))
        os.chmod(self.dir, 0o711)  # tests act as other users on the mounts, too
        self.expected_log = []  # regular expressions of suspect lines that this test provokes
        self.sessions = set()  # of all node processes there ever were
        self.is_up = False

    # ---- life ----

    def tool(self, *args, timeout=150, check=True):
        result = run([TOOL, args[0], self.dir, *map(str, args[1:])], timeout, check)
        self._note_sessions()
        return result

    def up(self):
        extra = ["--", *self.flags] if self.flags else []
        self.is_up = True
        self.tool("up", "-n", self.count, *extra)
        return self

    def add(self, i):
        """Adds node I as a learner, and starts it."""
        self.count = max(self.count, i)
        self.tool("add", i)
        self.removed.discard(i)

    def remove(self, i):
        """Removes node I, stops it and deletes its data."""
        self.tool("remove", i)
        self.removed.add(i)

    def down(self):
        self.tool("down", timeout=60)
        self.is_up = False

    def kill(self, i, sig="KILL"):
        self.tool("kill", i, sig)

    def start(self, i):
        self.tool("start", i)

    def arguments(self, i):
        """The command line of node I, which runs: to start it by hand."""
        with open(f"/proc/{self.pid(i)}/cmdline", "rb") as file:
            return [os.fsdecode(argument) for argument in file.read().split(b"\0")[:-1]]

    def cut(self, i):
        self.tool("cut", i)

    def heal(self, i):
        self.tool("heal", i)

    def leader(self):
        return int(self.tool("leader").stdout)

    def followers(self):
        leader = self.leader()
        return [i for i in self.nodes() if i != leader]

    def all_nodes(self):
        return range(1, self.count + 1)

    def nodes(self):
        return [i for i in self.all_nodes() if i not in self.removed]

    def pid(self, i):
        with open(os.path.join(self.dir, f"n{i}", "pid")) as file:
            return int(file.read())

    def _note_sessions(self):
        for i in self.all_nodes():
            try:
                self.sessions.add(self.pid(i))
            except (FileNotFoundError, ValueError):
                pass

    # ---- files; every access has a bound ----

    def mnt(self, i):
        return os.path.join(self.dir, f"n{i}", "mnt")

    def path(self, i, name=""):
        return os.path.join(self.mnt(i), name)

    def call(self, i, function, name="", timeout=10):
        """function(path) in a child process."""
        return bounded(lambda: function(self.path(i, name)), timeout)

    def read(self, i, name, timeout=10):
        return self.call(i, _read, name, timeout)

    def write(self, i, name, data, timeout=10, flags=os.O_CREAT | os.O_TRUNC):
        """One open, one write, one close."""
        data = data if isinstance(data, bytes) else data.encode()
        return self.call(i, lambda path: _write(path, data, flags), name, timeout)

    def append(self, i, name, data, timeout=10):
        return self.write(i, name, data, timeout, os.O_CREAT | os.O_APPEND)

    def listdir(self, i, name="", timeout=10):
        return sorted(self.call(i, os.listdir, name, timeout))

    def stat(self, i, name, timeout=10):
        return self.call(i, os.lstat, name, timeout)

    def exists(self, i, name, timeout=10):
        try:
            self.stat(i, name, timeout)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        return True

    def mkdir(self, i, name, timeout=10):
        self.call(i, os.mkdir, name, timeout)

    def unlink(self, i, name, timeout=10):
        self.call(i, os.unlink, name, timeout)

    def rename(self, i, old, new, timeout=10):
        bounded(lambda: os.rename(self.path(i, old), self.path(i, new)), timeout)

    def xattr(self, i, name, attribute, timeout=10):
        return self.call(i, lambda path: os.getxattr(path, attribute), name, timeout).decode()

    def revision(self, i, name, timeout=10):
        return int(self.xattr(i, name, "user.keel.revision", timeout))

    def status(self, i, timeout=10):
        lines = self.read(i, "@keel/status", timeout).decode().splitlines()
        return dict(line.split(": ", 1) for line in lines)

    def keelctl(self, i, *arguments, **options):
        """keelctl on node I's mount; its result."""
        return run([KEELCTL, "--mount", self.mnt(i), *map(str, arguments)], **options)

    def members(self, i, timeout=10):
        """What node I says of the members: their fields by name."""
        lines = self.read(i, "@keel/members", timeout).decode().splitlines()
        fields = [dict(field.split("=", 1) for field in line.split(" ")) for line in lines]
        return {member["name"]: member for member in fields}

    def voters(self, i):
        return sorted(name for name, member in self.members(i).items() if member["voter"] == "yes")

    def run(self, command, i=None, **options):
        """A command (bash, if a string), with node I's mount as its working directory."""
        if i is not None:
            # A chdir by this process could hang; the shell's hangs in the bound of run.
            command = command if isinstance(command, str) else " ".join(map(_quote, command))
            command = f"cd {_quote(self.mnt(i))} && {{ {command}\n}}"
        return run(command, **options)

    # ---- logs and what is left behind ----

    def log(self, i):
        try:
            with open(os.path.join(self.dir, f"n{i}", "log"), errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def suspect_lines(self):
        return [
            f"n{i}: {line}"
            for i in self.all_nodes()
            for line in self.log(i).splitlines()
            if SUSPECT.search(line) and not any(re.search(e, line) for e in self.expected_log)
        ]

    def leftovers(self):
        left = [f"mount {point}" for point in mounts_below(self.dir)]
        left += [f"process {pid}" for pid in processes_of_sessions(self.sessions)]
        left += [f"poker {pid}" for pid in pokers_below(self.dir)]
        return left

    def close(self):
        """Takes everything down, and fails if something was wrong with it. Never hangs."""
        problems = []
        if self.is_up:
            try:
                self.down()
            except (Hung, AssertionError) as error:
                problems.append(f"down: {error}")
        reap()
        problems += [f"suspect line in the log: {line}" for line in self.suspect_lines()]
        left = []
        try:
            wait_for(lambda: not self.leftovers(), 5)
        except AssertionError:
            left = self.leftovers()
        problems += [f"left behind: {item}" for item in left]
        if not problems:
            shutil.rmtree(self.dir)
        assert not problems, "\n".join(problems) + f"\n(files: {self.dir})"


def _quote(text):
    return "'" + str(text).replace("'", "'\\''") + "'"


def _read(path):
    with open(path, "rb", buffering=0) as file:
        parts = []
        while part := file.read(1 << 20):
            parts.append(part)
        return b"".join(parts)


def _write(path, data, flags):
    descriptor = os.open(path, os.O_WRONLY | flags, 0o644)
    try:
        written = os.write(descriptor, data)
        assert written == len(data)
    finally:
        os.close(descriptor)
