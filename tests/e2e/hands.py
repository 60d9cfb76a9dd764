"""Hands: processes that hold descriptors on mounts and do what a test tells them, one call at a time.

keel.bounded() is for one access that ends at once. A Hand stays: it opens on one node, waits while the test looks at the others, and
goes on, or is killed. What it is asked for is answered within a bound, or keel.Hung is raised.
"""

import os
import pickle
import select
import signal
import struct
import time

from keel import Hung, _left_behind, reap

BOUND = 20


class Hand:
    """hand.open(path, flags), hand.write(fd, data) …: functions of os, called in the other process; hand(function) for anything else
    (a function at the top of a module, or its name in os, with arguments)."""

    def __init__(self):
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._commands)
            os.close(self._answers)
            try:
                _serve(commands, answers)
            finally:
                os._exit(0)
        os.close(commands)
        os.close(answers)

    def __call__(self, function, *arguments, bound=BOUND):
        self.begin(function, *arguments)
        return self.end(bound)

    def begin(self, function, *arguments):
        """Asks, and does not wait."""
        data = pickle.dumps((function, arguments))
        os.write(self._commands, struct.pack("<I", len(data)) + data)

    def end(self, bound=BOUND):
        """The result of what was asked last, or its exception."""
        return _answered(self._answers, time.monotonic() + bound)

    def busy(self, seconds):
        """Whether there is no answer for so long."""
        return not select.select([self._answers], [], [], seconds)[0]

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments, **options: self(name, *arguments, **options)

    def kill(self, sig=signal.SIGKILL, bound=BOUND):
        """Kills it and waits for its end."""
        if self.pid is None:
            return
        os.kill(self.pid, sig)
        end = time.monotonic() + bound
        while not os.waitpid(self.pid, os.WNOHANG)[0]:
            if time.monotonic() > end:
                raise Hung(f"process {self.pid} does not die")
            time.sleep(0.005)
        self.pid = None

    def drop(self):
        """Kills it if it lives, and closes our ends."""
        try:
            self.kill()
        finally:
            os.close(self._commands)
            os.close(self._answers)


def _serve(commands, answers):
    while head := os.read(commands, 4):
        size, data = struct.unpack("<I", head)[0], b""
        while len(data) < size:
            data += os.read(commands, size - len(data))
        function, arguments = pickle.loads(data)
        _answer(answers, getattr(os, function) if isinstance(function, str) else function, *arguments)


def as_user(uid, function, *arguments):
    """In a child only (bounded, a Hand): calls the function as this user and group, without other groups."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    return function(*arguments)


def in_parallel(functions, bound=60):
    """Each function in a process of its own, all let go together; their results in order. The first exception is raised here."""
    gate, opener = os.pipe()
    running = []
    for function in functions:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(opener)
                os.close(reader)
                os.read(gate, 1)  # its end: all are there
                _answer(writer, function)
            finally:
                os._exit(0)
        os.close(writer)
        running.append((pid, reader))
    os.close(gate)
    os.close(opener)
    try:
        return _collected([reader for _, reader in running], time.monotonic() + bound)
    finally:
        for pid, reader in running:
            os.kill(pid, signal.SIGKILL)  # not collected before, so still ours
            os.close(reader)
            _left_behind.append(pid)
        reap()


def _answer(pipe, function, *arguments):
    try:
        answer = pickle.dumps((True, function(*arguments)))
    except Exception as error:  # carried over to the test
        answer = pickle.dumps((False, error))
    answer = struct.pack("<I", len(answer)) + answer
    while answer:
        answer = answer[os.write(pipe, answer):]


def _taken(pipe, size, end):
    data = b""
    while len(data) < size:
        left = end - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            raise Hung("no answer in time")
        part = os.read(pipe, size - len(data))
        assert part, "the process has ended without an answer"
        data += part
    return data


def _answered(pipe, end):
    size = struct.unpack("<I", _taken(pipe, 4, end))[0]
    ok, answer = pickle.loads(_taken(pipe, size, end))
    if not ok:
        raise answer
    return answer


def _collected(pipes, end):
    return [_answered(pipe, end) for pipe in pipes]
