"""One node of keelfs for tools/bench store: started and stopped to the millisecond, filled, and looked at from outside; and the writer
whose latencies are sorted by what the node was doing meanwhile."""

import contextlib
import json
import os
import socket
import subprocess
import time

from bench_common import GENERATOR, STEP_SECONDS, Server, Trouble, finish, start, unmount_below

FILL_CLIENTS = 100
FILL_SECONDS = 1800
POLL_SECONDS = 0.05  # a look at the status is a disturbance itself


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def memory_of(pid):
    """VmRSS and its part that is not of files, in bytes."""
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return {"rss_bytes": int(fields["VmRSS"].split()[0]) * 1024, "rss_anon_bytes": int(fields["RssAnon"].split()[0]) * 1024}


def poker_of(mount):
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
            if words[1:3] == [b"--poker", os.fsencode(mount)]:
                return int(entry)
    return None


class Node(Server):
    """`data` is where its data go, if not beside the rest; the log is in `directory` in any case."""

    def __init__(self, directory, flags=(), data=None):
        self.directory = directory
        self.mount = os.path.join(directory, "mnt")
        self.data = data or os.path.join(directory, "data")
        self.log = os.path.join(directory, "wal")
        self.directories = 0
        self.names = {}  # inode of a segment -> the first name that it was seen under
        for path in (directory, self.mount, self.data, self.log):
            os.mkdir(path)
        self.command = [
            os.environ["KEELFS"], "--name", "n1", "--data-dir", self.data, "--wal-dir", self.log, "--bootstrap",
            "--initial-cluster", f"n1=127.0.0.1:{free_port()}", "--log-level", "error", *flags, self.mount]

    # ---- starts and stops ----

    def start(self, file="@keel/settings"):
        """The milliseconds from the start of the process until the file could be read."""
        waiting = start([GENERATOR, "await", "--seconds", str(STEP_SECONDS), os.path.join(self.mount, file)])
        time.sleep(0.1)  # it is there, and would not be in the way
        begin_ns = time.monotonic_ns()
        self.run(self.command)
        return (json.loads(finish(waiting, 2 * STEP_SECONDS))["at_ns"] - begin_ns) / 1e6

    def take_down(self):
        """The poker ends with its mount."""
        super().take_down()
        unmount_below(self.directory)

    # ---- what it says and has ----

    def status(self):
        with open(os.path.join(self.mount, "@keel", "status")) as file:
            return dict(line.rstrip("\n").split(": ", 1) for line in file if ": " in line)

    def keys(self):
        return int(self.status()["keys"])

    def memory(self):
        poker = poker_of(self.mount)
        return {**memory_of(self.process.pid), "poker_rss_bytes": memory_of(poker)["rss_bytes"] if poker else 0}

    def data_file_bytes(self):
        return os.stat(os.path.join(self.data, "store", "data.mdb")).st_size

    def log_bytes(self):
        return sum(entry.stat().st_blocks * 512 for entry in os.scandir(self.log))

    def wait_until(self, condition):
        """condition(status)."""
        end = time.monotonic() + FILL_SECONDS
        while not condition(self.status()):
            if time.monotonic() > end:
                raise Trouble(f"the node in {self.directory} takes longer than {FILL_SECONDS} s")
            time.sleep(POLL_SECONDS)

    def wait_until_stored(self, but=0):
        """All that is applied now is in the store, but for so many entries: there may be a writer."""
        applied = int(self.status()["applied_index"])
        self.wait_until(lambda status: int(status["stored_index"]) + but >= applied)

    # ---- work ----

    def new_directory(self):
        self.directories += 1
        path = os.path.join(self.mount, f"bench{self.directories}")
        os.mkdir(path)
        return path

    def compact(self):
        """All history, until none of it is in the store's tables any more. Seconds."""
        revision = self.status()["revision"]
        begin = time.monotonic()
        with open(os.path.join(self.mount, "@keel", "compact"), "w") as file:
            file.write(revision)
        self.wait_until(lambda status: status["compacting"] == "no")
        self.wait_until_stored()
        return time.monotonic() - begin

    def defragment(self):
        with open(os.path.join(self.mount, "@keel", "defrag"), "w") as file:
            file.write("1")
        self.wait_until_defragmented()

    def wait_until_defragmented(self):
        """If it is at it, by itself for instance."""
        self.wait_until(lambda status: status["defragmenting"] == "no")

    # ---- segments of the log ----

    def uses_segments_again(self):
        """The files of the newest two, that which is written and the next one, had other names before."""
        segments = sorted((entry.name, entry.inode()) for entry in os.scandir(self.log) if entry.name.endswith(".wal"))
        for name, inode in segments:
            self.names.setdefault(inode, name)
        return len(segments) > 1 and all(self.names[inode] != name for name, inode in segments[-2:])

    def log_more(self):
        """Some MiB. The files are few, so that history is all that grows."""
        finish(start([GENERATOR, "fill", "--files", "2", "--count", "16", "--size", str(1 << 19), "--clients", "2", self.new_directory()]),
               STEP_SECONDS)


def fill(node, name, files, count=0):
    """`count` writes to so many new files of 256 bytes, or one to each."""
    path = os.path.join(node.mount, name)
    os.makedirs(path, exist_ok=True)
    words = ["--clients", FILL_CLIENTS, "--files", files]
    if count:
        words += ["--count", count]
    finish(start([GENERATOR, "fill", *map(str, words), path]), FILL_SECONDS)


# ---- writers ----


class Load:
    """A second writer, with options of keel-bench write, as long as the context lasts."""

    def __init__(self, node, *options):
        self.words = [GENERATOR, "write", "--until-eof", *map(str, options), node.new_directory()]

    def __enter__(self):
        self.child = start(self.words, stdin=subprocess.PIPE)
        time.sleep(0.3)  # it has made its files
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            finish(self.child, STEP_SECONDS)


class SerialWriter:
    """One write at a time, as fast as they go. `windows`: label -> for each window the latencies in us of what began in it."""

    def __init__(self, node):
        self.words = [GENERATOR, "write", "--until-eof", "--trace", node.new_directory()]
        self.spans = []
        self.windows = {}

    def __enter__(self):
        self.child = start(self.words, stdin=subprocess.PIPE)
        time.sleep(0.4)  # its warm-up is over
        return self

    @contextlib.contextmanager
    def during(self, label):
        begin_ns = time.monotonic_ns()
        yield
        self.spans.append((label, begin_ns, time.monotonic_ns()))

    def __exit__(self, kind, *_):
        if kind is not None:
            return
        figures = json.loads(finish(self.child, STEP_SECONDS))
        if figures["errors"] > 0:
            raise Trouble(f"the serial writer had {figures['errors']} errors: {figures.get('error')}")
        for label, begin_ns, end_ns in self.spans:
            latencies = [ns / 1000 for at, ns in zip(figures["begin_ns"], figures["ns"]) if begin_ns <= at < end_ns]
            self.windows.setdefault(label, []).append(latencies)


def percentile(ordered, percent):
    """The smallest that at least so many percent do not exceed."""
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]


def tail_of(windows):
    everything = sorted(latency for window in windows for latency in window)
    if not everything:
        raise Trouble("a disturbance was over before anything was written: measure with more --keys or --revisions")
    return {
        "count": len(everything),
        "p50_us": percentile(everything, 50),
        "p99_us": percentile(everything, 99),
        "p999_us": percentile(everything, 99.9),
        "windows_p99_us": [percentile(sorted(window), 99) for window in windows if window],
    }
