"""A file on the mount against one on tmpfs: the same random operations have the same results.

What a handle holds back (docs/semantics.md) shows only where two descriptors of one file are open, or before fsync: so one
descriptor a file, and contents are compared after an fsync.
"""

import os
import random
import shutil
import tempfile

import pytest

NAMES = ["f0", "f1", "f2", "f3"]
ACCESS = [os.O_RDONLY, os.O_WRONLY, os.O_RDWR]
SIZES = [1, 10, 4096, 8192, 8192, 5000, 66000]
OFFSETS = [0, 3, 4096, 8192, 20000]


class Pair:
    """A directory on the mount, and its model."""

    def __init__(self, mounted, model, seed):
        self.dirs = (mounted, model)
        self.random = random.Random(seed)
        self.open = []  # (descriptor, model's descriptor, flags)
        self.trace = []

    def both(self, what, function, arguments):
        """function on each of the two; the results, or errors, must be the same."""
        results = []
        for argument in arguments:
            try:
                results.append(function(argument))
            except OSError as error:
                results.append(f"errno {error.errno}")
        self.trace.append(what)
        if not all(isinstance(result, int) for result in results) or "open" not in what:
            assert results[0] == results[1], "\n".join(self.trace[-60:])
        return results

    def on_name(self, what, name, function):
        return self.both(f"{what} {name}", lambda top: function(os.path.join(top, name)), self.dirs)

    def on_descriptor(self, what, function):
        pair = self.random.choice(self.open)
        return self.both(f"{what} {pair}", function, pair[:2])

    def is_open(self, name):
        try:
            inode = os.stat(os.path.join(self.dirs[1], name)).st_ino
        except OSError:
            return False
        return any(os.fstat(pair[1]).st_ino == inode for pair in self.open)

    def open_one(self):
        name = self.random.choice(NAMES)
        flags = self.random.choice(ACCESS)
        if self.random.random() < 0.6:
            flags |= os.O_CREAT
        if flags & os.O_ACCMODE and self.random.random() < 0.3:
            flags |= os.O_TRUNC
        if flags & os.O_ACCMODE and self.random.random() < 0.15:
            flags |= os.O_APPEND
        if self.is_open(name) or len(self.open) == 6:
            return
        pair = self.on_name(f"open {flags:#o}", name, lambda path: os.open(path, flags, 0o644))
        if isinstance(pair[0], int):
            self.open.append((*pair, flags))

    def close_one(self):
        if self.open:
            pair = self.open.pop(self.random.randrange(len(self.open)))
            self.trace.append(f"close {pair}")
            os.close(pair[1])
            os.close(pair[0])

    def change_name(self):
        name, other = self.random.choice(NAMES), self.random.choice(NAMES)
        which = self.random.randrange(3)
        if which == 0:
            self.on_name("unlink", name, os.unlink)
        elif which == 1:
            self.on_name(f"rename to {other}", name,
                         lambda path: os.rename(path, os.path.join(os.path.dirname(path), other)))
        elif not self.is_open(name):
            size = self.random.choice([0, 5, 100, 5000, 70000])
            self.on_name(f"truncate {size}", name, lambda path: os.truncate(path, size))

    def change_content(self):
        if not self.open:
            return
        data = bytes([self.random.randrange(256)]) * self.random.choice(SIZES)
        offset = self.random.choice(OFFSETS)
        which = self.random.randrange(6)
        if which <= 2:
            self.on_descriptor(f"write {len(data)}", lambda fd: os.write(fd, data))
        elif which == 3:
            pair = self.random.choice(self.open)
            if not pair[2] & os.O_APPEND:
                self.both(f"pwrite {len(data)} at {offset} {pair}",
                          lambda fd: os.pwrite(fd, data, offset), pair[:2])
        elif which == 4:
            size = self.random.choice([0, 7, 9000])
            self.on_descriptor(f"ftruncate {size}", lambda fd: os.ftruncate(fd, size))
        else:
            self.on_descriptor("lseek", lambda fd: os.lseek(fd, 0, os.SEEK_SET))

    def compare(self):
        for fd, _, flags in self.open:
            if flags & os.O_ACCMODE != os.O_RDONLY:
                os.fsync(fd)
        for pair in self.open:
            self.both(f"fstat {pair}", lambda fd: str(os.fstat(fd).st_nlink), pair[:2])
            if pair[2] & os.O_ACCMODE != os.O_WRONLY:
                offset = self.random.choice([0, 0, 100, 9000])
                self.both(f"pread {pair} at {offset}", lambda fd: os.pread(fd, 1 << 20, offset),
                          pair[:2])
        self.both("listdir", lambda top: sorted(os.listdir(top)), self.dirs)
        for name in os.listdir(self.dirs[1]):
            self.on_name("content of", name, lambda path: open(path, "rb").read())

    def step(self):
        share = self.random.random()
        if share < 0.13:
            self.open_one()
        elif share < 0.24:
            self.close_one()
        elif share < 0.38:
            self.change_name()
        else:
            self.change_content()


@pytest.mark.parametrize("seed", range(6))
def test_random_operations_have_the_results_of_a_local_file_system(shared_node, seed):
    mounted = shared_node.path(1, f"model{seed}")
    os.mkdir(mounted)
    model = tempfile.mkdtemp(dir="/dev/shm")
    pair = Pair(mounted, model, seed)
    try:
        for step in range(2000):
            pair.step()
            if step % 40 == 39:
                pair.compare()
    finally:
        for descriptors in pair.open:
            os.close(descriptors[1])
            os.close(descriptors[0])
        shutil.rmtree(model)
