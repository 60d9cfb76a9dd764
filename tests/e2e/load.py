"""Writers that note what was acknowledged to them, and the check of what is in the cluster against their notes.

Run as a program, this file is one writer. It numbers its lines, writes each with one write(2) of 256 bytes, never twice, and notes outside
of the mount what became of it. Whatever happens to its mount, it opens its file again and goes on with the next number.

Kinds: `append` (O_APPEND; all append writers of a run share their files) and `pwrite` (a file of its own, line N in slot N). None of these
writes is held back by the node: their handles do not begin empty, and 256 bytes are no full buffer.
"""

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time

from keel import Hung, bounded, reap, wait_for

LINE = 256
# Files stay below the size limit: 9 writers at most, 400 lines of each in one shared file.
APPEND_LINES, PWRITE_LINES = 400, 4000
NAMES = 40  # so many files are made in advance: a writer never creates one


def line_of(writer, number):
    return f"{writer} {number:08d} ".encode().ljust(LINE - 1, b".") + b"\n"


def file_of(kind, writer, number):
    if kind == "append":
        return f"load/shared-{number // APPEND_LINES}"
    return f"load/{writer}-{number // PWRITE_LINES}"


def _open(path, kind):
    return os.open(path, os.O_WRONLY | (os.O_APPEND if kind == "append" else 0))


def _close(descriptor):
    try:
        os.close(descriptor)
    except OSError:
        pass  # its mount is dead: closed all the same


def _put(descriptor, kind, line, number):
    if kind == "append":
        return os.write(descriptor, line)
    return os.pwrite(descriptor, line, number % PWRITE_LINES * LINE)


def writer_main(mount, kind, writer, notes, stop, pause):
    # Python writes again when a signal has interrupted it: an interrupted write that was done all the same would be there twice.
    signal.signal(signal.SIGUSR1, lambda *_: None)
    out = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    number, descriptor, name = 0, -1, None
    while not os.path.exists(stop):
        if descriptor < 0 or file_of(kind, writer, number) != name:
            if descriptor >= 0:
                _close(descriptor)
            name, descriptor = file_of(kind, writer, number), -1
            try:
                descriptor = _open(os.path.join(mount, name), kind)
            except OSError as error:
                os.write(out, f"open {number} {errno.errorcode[error.errno]}\n".encode())
                time.sleep(0.02)
                continue
        os.write(out, f"try {number}\n".encode())
        try:
            written = _put(descriptor, kind, line_of(writer, number), number)
            os.write(out, f"ok {number}\n".encode() if written == LINE else f"short {number}\n".encode())
        except OSError as error:
            os.write(out, f"error {number} {errno.errorcode[error.errno]}\n".encode())
            _close(descriptor)
            descriptor = -1
        number += 1
        if pause:
            time.sleep(pause)


class Load:
    """Writers on the mounts of a cluster: with Load(cluster, ["append", …]) as load: … ; load.check()."""

    def __init__(self, cluster, kinds, nodes=None, pause=0):
        self.cluster = cluster
        self.pause = pause
        nodes = list(nodes or cluster.nodes())
        self.kinds = {f"w{n}": kind for n, kind in enumerate(kinds)}
        self.node = {w: nodes[n % len(nodes)] for n, w in enumerate(self.kinds)}
        self.dir = tempfile.mkdtemp(prefix="notes-", dir=cluster.dir)
        self.processes = {}

    def __enter__(self):
        path = self.cluster.path(self.node["w0"], "load")

        def create():
            os.makedirs(path, exist_ok=True)
            for writer, kind in self.kinds.items():
                for k in range(NAMES if kind == "append" else 4):
                    step = APPEND_LINES if kind == "append" else PWRITE_LINES
                    name = os.path.join(path, os.path.basename(file_of(kind, writer, k * step)))
                    if not os.path.exists(name):
                        os.close(os.open(name, os.O_CREAT | os.O_EXCL, 0o644))

        bounded(create, 30)
        for writer, kind in self.kinds.items():
            mount = self.cluster.mnt(self.node[writer])
            self.processes[writer] = subprocess.Popen(
                [sys.executable, __file__, mount, kind, writer, self._notes(writer), self._stop(), str(self.pause)],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_):
        with open(self._stop(), "w"):
            pass
        end = time.monotonic() + 20
        late = []
        for writer, process in self.processes.items():
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                late.append(writer)
                process.kill()
        if late:
            raise Hung(f"writers {late} did not end")
        assert all(p.returncode == 0 for p in self.processes.values())

    def _notes(self, writer):
        return os.path.join(self.dir, writer)

    def _stop(self):
        return os.path.join(self.dir, "stop")

    def notes(self, writer):
        """{number: "ok" | errno's name | "unknown"}, and the names of errors of open."""
        fate, opens = {}, []
        try:
            with open(self._notes(writer)) as file:
                lines = file.read().split("\n")[:-1]
        except FileNotFoundError:
            lines = []
        for line in lines:
            word, number, *rest = line.split()
            if word == "open":
                opens.append(rest[0])
            else:
                fate[int(number)] = {"try": "unknown", "ok": "ok", "short": "short"}.get(word) or rest[0]
        return fate, opens

    def acknowledged(self, writer):
        try:
            with open(self._notes(writer), "rb") as file:
                return file.read().count(b"\nok ")
        except FileNotFoundError:
            return 0

    def wait_for_progress(self, lines=50, bound=20, writers=None):
        """Until each of the writers has had so many more acknowledgements."""
        writers = list(writers or self.kinds)
        goal = {w: self.acknowledged(w) + lines for w in writers}
        wait_for(lambda: all(self.acknowledged(w) >= goal[w] for w in writers), bound, "writers make progress")

    def errors(self):
        found = set()
        for writer in self.kinds:
            fate, opens = self.notes(writer)
            found |= set(fate.values()) | set(opens)
        return found - {"ok", "unknown"}

    # ---- what is in the cluster ----

    def _contents(self, i):
        path = self.cluster.path(i, "load")

        def read_all():
            all_of_them = {}
            for name in sorted(os.listdir(path)):
                with open(os.path.join(path, name), "rb") as file:
                    content = file.read()
                version = int(os.getxattr(os.path.join(path, name), "user.keel.version"))
                if content:
                    all_of_them[name] = (version, content)
            return all_of_them

        return bounded(read_all, 60)

    def check(self, nodes=None):
        """Acknowledged lines exactly once on every node, the others at most once, each writer's in order. Returns the acknowledged."""
        nodes = list(nodes or self.cluster.nodes())
        contents = {i: self._contents(i) for i in nodes}
        for i in nodes[1:]:
            assert contents[i] == contents[nodes[0]], f"n{i} differs from n{nodes[0]}"
        place = {w: [] for w in self.kinds}
        for name in sorted(contents[nodes[0]], key=_file_number):
            version, content = contents[nodes[0]][name]
            assert len(content) % LINE == 0, (name, len(content))
            # Created empty, which is version 1: each line is exactly one more.
            lines = [content[k : k + LINE] for k in range(0, len(content), LINE)]
            lines = [line for line in lines if line.strip(b"\0")]
            assert version == 1 + len(lines), (name, version, len(lines))
            for line in lines:
                writer, number = line.split()[0].decode(), int(line.split()[1])
                assert line == line_of(writer, number), (name, line)
                assert os.path.basename(file_of(self.kinds[writer], writer, number)) == name
                place[writer].append(number)
        acknowledged = 0
        for writer in self.kinds:
            fate, _ = self.notes(writer)
            there = place[writer]
            assert there == sorted(set(there)), f"{writer}: a line twice, or out of order"
            assert "short" not in fate.values()
            lost = [n for n, word in fate.items() if word == "ok" and n not in set(there)]
            assert not lost, f"{writer} on n{self.node[writer]}: acknowledged lines are gone: {lost[:20]} of {len(lost)}"
            invented = set(there) - set(fate)
            assert not invented, f"{writer}: lines that were never written: {sorted(invented)[:20]}"
            acknowledged += list(fate.values()).count("ok")
        reap()
        return acknowledged


def _file_number(name):
    return int(name.rpartition("-")[2])


if __name__ == "__main__":
    writer_main(*sys.argv[1:6], float(sys.argv[6]))
