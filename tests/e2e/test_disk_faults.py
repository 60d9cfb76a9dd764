"""A whole node on a disk that fails: kill -9 before and after each call by which files are changed, power cuts in them, errors of syncs, a full disk.

By default each kind of call is hit at least once, and of the others a few, by a fixed seed; KEEL_FAULTS_ALL=1 takes them all. One point by hand is told in
docs/testing.md.
"""

import os
import random
import re
import signal

import pytest

import faults
from faults import Node, line_of, points_of, some_of
from keel import run, wait_for

SEED = 20


@pytest.fixture
def make_node(tmp_path):
    """make_node(…): as many as a test wants, each in a directory of its own."""
    made = []

    def make(**options):
        made.append(Node(tmp_path / f"node{len(made)}", **options))
        return made[-1]

    yield make
    for node in made:
        node.clean()


# ---- the disk itself ----


def on_disk(tmp_path, plan, program):
    """Runs a Python program in the directory of a failing disk; its exit code."""
    own, disk = str(tmp_path / "own"), str(tmp_path / "disk")
    for path in own, disk:
        os.makedirs(path, exist_ok=True)
    faults.write_plan(own, plan)
    result = run(["/usr/bin/python3", "-c", "import os\n" + program], check=False, cwd=disk, env=faults.environment(own, disk))
    assert "keel-faults" not in result.stderr and result.returncode in (0, -signal.SIGKILL), result.stderr
    return result.returncode


TWO_SECTORS = """
f = os.open('f', os.O_RDWR | os.O_CREAT)
os.pwrite(f, b'old' * 1024, 0)
os.fsync(f)
os.fsync(os.open('.', os.O_RDONLY))
os.pwrite(f, b'new' * 1024, 0)
os.pwrite(f, b'end' * 1024, 3072)
"""


def test_the_kill_comes_before_or_after_the_call_that_is_named(tmp_path):
    calls = "create write sync syncdir write write"
    for number, call in enumerate(calls.split(), 1):
        for verb in "kill-before", "kill-after":
            place = tmp_path / f"{number}-{verb}"
            assert on_disk(place, [f"{verb} {number} * *"], TWO_SECTORS) == -signal.SIGKILL
            done = faults.read_calls(place / "own")
            assert [c.name for c in done] == calls.split()[:number] and done[-1].what == verb
            happened = number if verb == "kill-after" else number - 1
            there = (place / "disk" / "f").read_bytes() if happened else None
            assert there == [None, b"", *[b"old" * 1024] * 3, b"new" * 1024, b"new" * 1024 + b"end" * 1024][happened]


def test_a_power_cut_takes_what_is_not_synced_and_never_what_is(tmp_path):
    seen = set()
    for seed in range(24):
        place = tmp_path / str(seed)
        assert on_disk(place, ["cut-after 6 * *", f"seed {seed}"], TWO_SECTORS) == -signal.SIGKILL
        there = (place / "disk" / "f").read_bytes()
        assert len(there) >= 3072
        for at in range(0, len(there), 512):
            sector = there[at:at + 512]
            old, new = (b"old" * 1024)[at:at + 512], (b"new" * 1024 + b"end" * 1024)[at:at + 512]
            old = old.ljust(512, b"\0")[:len(sector)]
            new = new[:len(sector)]
            fate = {old: "lost", new: "kept", bytes(len(sector)): "zeroed"}.get(sector, "torn")
            assert fate != "torn" or all(byte in pair for byte, *pair in zip(sector, old, new))
            seen.add((fate, at < 3072))
    assert seen == {(fate, old) for fate in ("lost", "kept", "zeroed", "torn") for old in (True, False)} - {("lost", False)}


NAMES = """
top = os.open('.', os.O_RDONLY)
for name in 'abc':
    f = os.open(name, os.O_RDWR | os.O_CREAT)
    os.write(f, name.encode())
    os.fsync(f)
os.fsync(top)
os.rename('a', 'b')
os.unlink('c')
os.mkdir('d')
f = os.open('d/e', os.O_RDWR | os.O_CREAT)
os.write(f, b'e')
os.fsync(f)
os.rename('d/e', 'd/f')
"""


def tree(path):
    return {name: (path / name).read_text() if (path / name).is_file() else sorted(os.listdir(path / name)) for name in os.listdir(path)}


def test_a_power_cut_takes_names_that_are_not_synced_and_never_those_that_are(tmp_path):
    seen = set()
    for seed in range(24):
        place = tmp_path / str(seed)
        on_disk(place, ["cut-after 1 rename d/e", f"seed {seed}"], NAMES)
        there = tree(place / "disk")
        renamed = {"b": "a"} if "a" not in there else {"a": "a", "b": "b"}
        assert renamed.items() <= there.items() and there.get("c", "c") == "c"
        assert there.get("d", ["f"]) in ([], ["e"], ["f"])
        seen.add(("a" in there, "c" in there, tuple(there.get("d", ()))))
        assert os.listdir(place / "own" / "graves") == []
    assert len(seen) > 4
    synced = NAMES + "os.fsync(top); os.fsync(os.open('d', os.O_RDONLY)); os.pwrite(f, b'x', 0)"
    for seed in range(20):
        place = tmp_path / f"synced-{seed}"
        on_disk(place, ["cut-after 1 write d/f", f"seed {seed}"], synced)
        assert tree(place / "disk").keys() == {"b", "d"} and tree(place / "disk")["d"] == ["f"]


def test_what_a_killed_process_has_not_synced_is_lost_in_the_next_ones_power_cut(tmp_path):
    lost = 0
    for seed in range(20):
        place = tmp_path / str(seed)
        on_disk(place, ["kill-after 6 * *"], TWO_SECTORS)
        assert (place / "disk" / "f").read_bytes() == b"new" * 1024 + b"end" * 1024
        on_disk(place, [f"seed {seed}", "cut-after 1 create g"], "os.open('g', os.O_RDWR | os.O_CREAT)")
        lost += (place / "disk" / "f").read_bytes() != b"new" * 1024 + b"end" * 1024
    assert 5 < lost < 20


def test_the_disk_is_full_or_broken_for_the_calls_that_are_named(tmp_path):
    program = """
import errno
f = os.open('f', os.O_RDWR | os.O_CREAT)
def error_of(function, *arguments):
    try:
        return function(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
assert error_of(os.pwrite, f, b'1' * 3000, 0) == 3000
assert error_of(os.pwrite, f, b'2' * 3000, 0) == 1024
assert error_of(os.pwrite, f, b'3' * 3000, 0) == 'ENOSPC' and os.statvfs('.').f_bavail == 0
assert error_of(os.pwrite, f, b'4' * 3000, 0) == 3000 and os.statvfs('.').f_bavail > 0
assert error_of(os.fdatasync, f) is None
for _ in range(3):
    assert error_of(os.fdatasync, f) == 'EIO'
assert error_of(os.fsync, os.open('.', os.O_RDONLY)) is None
"""
    assert on_disk(tmp_path, ["full 2-3 write f", "eio 2 sync f", "seed 1"], program) == 0


def test_every_call_by_which_a_node_could_change_files_is_known_to_the_disk():
    """Those that the program and LMDB import, and that the failing disk does not stand in front of, are used for other things only."""
    changing = {"creat", "link", "linkat", "symlink", "symlinkat", "mknod", "mknodat", "truncate", "copy_file_range", "sendfile", "splice", "msync",
                "sync", "syncfs", "sync_file_range", "pwritev2", "openat2", "io_uring_setup", "syscall", "fopen64", "fopen", "remove", "mkstemp64"}

    def symbols(path, how):
        return {line.split()[-1].partition("@")[0] for line in run(["nm", "-D", how, path]).stdout.splitlines()}

    lmdb = re.search(r"liblmdb\S* => (\S+)", run(["ldd", faults.keel.BINARY]).stdout)[1]
    used = symbols(faults.keel.BINARY, "--undefined-only") | symbols(lmdb, "--undefined-only")
    known = symbols(faults.LIBRARY, "--defined-only")
    assert {"openat64", "pwrite", "pwritev64", "fdatasync", "renameat2"} <= used & known
    # The poker's, on the mount (symlinkat, syscall); of LMDB for maps that are written to, which ours is not (msync); reading the configuration (fopen).
    assert used & changing - known <= {"symlinkat", "syscall", "msync", "fopen64"}


# ---- phases of a node's life, each until the disk has seen all of it ----


def phase_writes(node, dice):
    since = len(node.calls())
    node.work([faults.small_steps(dice, writer.files, 8) for writer in node.writers])
    node.wait_for_call("commit", "data/store/data.mdb", since)


def phase_segments(node, dice):
    since = len(node.calls())
    node.work([faults.large_steps(dice, 9), faults.small_steps(dice, node.writers[1].files, 8)])
    node.wait_for_call("unlink|rename", "data/wal/.*", since)
    node.wait_for_call("commit", "data/store/data.mdb", since, 2)


def phase_compaction(node, dice):
    node.work([[("put", f"f{n % 3}", dice.randrange(1 << 30), 300) for n in range(40)] for _ in node.writers])
    since = len(node.calls())
    if not node.is_over():
        assert node.tell("compact") is None
    node.wait_for_call("commit", "data/store/data.mdb", since)
    since = len(node.calls())
    node.work([[("put", "last", dice.randrange(1 << 30), 300)] for _ in node.writers])
    node.wait_for_call("commit", "data/store/data.mdb", since)


def phase_defragmentation(node, dice):
    """It may be given up: then the node goes on with the store that it has."""
    since, said = len(node.calls()), node.last_log().count("is not defragmented")
    refused = node.tell("defrag", "1")
    node.work([faults.small_steps(dice, writer.files, 4) for writer in node.writers])
    if refused is None:
        node.wait_for_call("rmdir", "data/store.new", since, or_else=lambda: node.last_log().count("is not defragmented") > said)


def phase_stop(node, dice):
    node.work([faults.small_steps(dice, writer.files, 4) for writer in node.writers])
    node.stop()


PHASES = {"writes": phase_writes, "segments": phase_segments, "compaction": phase_compaction, "defragmentation": phase_defragmentation, "stop": phase_stop}


def calls_of(node, phase, dice):
    since = len(node.calls())
    phase(node, dice)
    return node.calls(since)


def restart(node, *plan):
    """Starts again after whatever has happened; all must be there."""
    node.check_log()
    assert node.start(*plan), node.last_log()
    node.check()


def hit(node, phase, dice, line):
    """The phase, with this in the plan: whether the node has ended over it, or it did not come to that."""
    since = len(node.calls())
    node.plan(line, f"seed {dice.randrange(1 << 30)}")
    phase(node, dice)
    node.plan()
    was_hit = any(call.what == line.split()[0] for call in node.calls(since))
    if was_hit:
        node.wait_end()
    return was_hit


def started(make_node, **options):
    node = make_node(**options)
    assert node.start()
    for _ in range(3):
        node.add_writer()
    return node


KILLS, CUTS = ("kill-before", "kill-after"), ("cut-in", "cut-after")
both = pytest.mark.parametrize("verbs", [KILLS, CUTS], ids=["kill", "power cut"])


@pytest.mark.parametrize("name", PHASES)
@both
def test_ended_at_any_call_a_node_comes_back_with_all_that_was_acknowledged(make_node, name, verbs):
    """Each life goes on with the disk of the one before, with what that has left unsynced."""
    dice = random.Random(f"{SEED} {name} {verbs}")
    node, phase = started(make_node), PHASES[name]
    phase(node, dice)
    if node.is_over():
        restart(node)
    points = some_of(points_of(calls_of(node, phase, dice)), verbs, dice, 2)
    hits = 0
    for verb, point in points:
        if node.is_over():
            restart(node)
        hits += hit(node, phase, dice, line_of(verb, point))
    if node.is_over():
        restart(node)
    assert hits > len(points) / 2, f"{hits} of {len(points)} calls came about"
    node.check()


def works(node, dice):
    """Starts again, is used, and is done with."""
    restart(node)
    node.add_writer()
    node.work([faults.small_steps(dice, {}, 6)])
    node.check()
    node.clean()


def one_of(verbs):
    """Where nothing goes on beside it, after a call is before the next one."""
    return verbs if faults.ALL else verbs[:1]


@both
def test_ended_at_any_call_of_its_first_start_a_node_starts_again(make_node, verbs):
    dice = random.Random(f"{SEED} {verbs}")
    first = started(make_node)
    for verb, point in some_of(points_of(first.calls()), one_of(verbs), dice, 4):
        node = make_node()
        if node.start(line_of(verb, point), f"seed {dice.randrange(1 << 30)}"):
            node.stop()
        works(node, dice)


def test_what_a_first_start_makes_has_a_name_that_outlives_a_power_cut(make_node):
    """Also where the log has a directory of its own."""
    dice = random.Random(SEED)
    for n in range(6):
        node = make_node()
        node.arguments += ["--wal-dir", os.path.join(node.disk, "log")]
        assert node.start()
        for _ in range(2):
            node.add_writer()
        since = len(node.calls())
        hit(node, phase_writes, dice, f"cut-in {n + 1} write log/*")
        assert node.was_killed() and len(node.calls()) > since
        assert node.start(), node.last_log()
        for writer in node.writers:
            writer.check()
        node.clean()


@both
def test_ended_at_any_call_of_a_start_after_a_crash_a_node_starts_again(make_node, verbs):
    dice = random.Random(f"{SEED} {verbs}")
    node = started(make_node)

    def crash():
        hit(node, phase_writes, dice, f"{dice.choice(KILLS + CUTS)} {dice.randrange(2, 12)} write,sync data/wal/*")
        node.stop(signal.SIGKILL)
        node.check_log()

    def calls_of_a_start():
        crash()
        since = len(node.calls())
        restart(node)
        return node.calls(since)

    calls = max((calls_of_a_start() for _ in range(5)), key=len)
    for verb, point in some_of(points_of(calls), one_of(verbs), dice, 4):
        crash()
        if node.start(line_of(verb, point), f"seed {dice.randrange(1 << 30)}"):
            node.plan()
            node.stop()
        restart(node)


@both
def test_ended_between_the_stores_commit_and_the_logs_release_a_node_misses_nothing(make_node, verbs):
    """The log goes only behind what the store has durably: between the two, and between the two halves of each, everything is there twice."""
    dice = random.Random(f"{SEED} {verbs}")
    node = started(make_node)
    steps = [("sync,commit", "data/store/data.mdb"), ("rename,unlink", "data/wal/*"), ("syncdir", "data/wal")]
    lines = [f"{verb} {n} {calls} {file}" for verb in verbs for calls, file in steps for n in (1, 2)]
    for line in lines:
        assert hit(node, phase_segments, dice, line), line
        restart(node)


def test_a_disk_that_lies_about_syncs_is_noticed_by_these_tests(make_node):
    """What is shown here: that the tests above would find a node that does not sync."""
    dice = random.Random(SEED)
    for _ in range(10):
        node = make_node()
        assert node.start("lies")
        for _ in range(3):
            node.add_writer()
        phase_writes(node, dice)
        node.plan("lies", "cut-after 6 sync data/wal/*", f"seed {dice.randrange(1 << 30)}")
        phase_writes(node, dice)
        assert node.was_killed()
        try:
            restart(node)
        except (AssertionError, FileNotFoundError):  # it does not start, or files or whole directories are lost
            return
        finally:
            node.clean()
    pytest.fail("power was cut ten times, nothing had been synced, and nothing was missed")


# ---- a snapshot on its way into a node ----


class Pair:
    """One that leads, and a learner on a failing disk, which falls behind and is sent snapshots."""

    def __init__(self, make_node, dice):
        flags = ["--log-kept", str(2 << 20), "--history", "1s", "--history-revisions", "1"]
        self.dice, self.leader = dice, make_node(flags=flags)
        assert self.leader.start(faults=False)
        self.leader.add_writer()
        self.leader.work([faults.small_steps(dice, {}, 8)])
        self.learner = make_node(name="n2", flags=flags, extra=["--join", self.leader.address])
        run([faults.keel.KEELCTL, "--mount", self.leader.mnt, "members", "add", "n2", self.learner.address])
        assert self.learner.start()

    def leave_behind(self):
        """The learner is stopped, and what it would need of the log is let go."""
        self.agree()
        self.learner.stop()
        last = int(self.leader.status()["last_index"])
        for _ in range(6):
            self.leader.work([faults.large_steps(self.dice, 3, 1)])
            if int(self.leader.status()["first_index"]) > last + 1:
                return
        wait_for(lambda: int(self.leader.status()["first_index"]) > last + 1, what="a log that was let go")

    def install(self, *plan):
        """The learner starts, and comes to the leader's state, or ends over it. Its calls."""
        since = len(self.learner.calls())
        if self.learner.start(*plan):
            wait_for(lambda: self.learner.is_over() or self.learner.is_settled() and self.is_one_state(), what="installed, or over")
        return self.learner.calls(since)

    def is_one_state(self):
        here, there = (node.status()["hash"].split(" at ") for node in (self.leader, self.learner))
        assert here == there or here[1] != there[1], "states differ"
        return here == there

    def agree(self):
        """Both are in the same state, and files are what they should be on both."""
        wait_for(self.is_one_state, what="one state")
        writer = self.leader.writers[0]
        writer.check()
        assert writer.hand(faults.look, os.path.join(self.learner.mnt, "w0")) == writer.hand(faults.look, writer.place)
        self.learner.check()


def is_of_installation(point):
    return "snapshot" in point.file or "install" in point.file or "store" in point.file or point.file == "data" or point.name in ("exchange", "rmdir")


@both
def test_ended_at_any_call_of_an_installation_a_node_comes_to_the_same_state(make_node, verbs):
    """Before the manifest has its name the snapshot has to come again: that is the next attempt. After it, the next start brings it to its end."""
    dice = random.Random(f"{SEED} {verbs}")
    pair = Pair(make_node, dice)
    pair.leave_behind()
    points = [point for point in points_of(pair.install()) if is_of_installation(point)]
    named = points.index(("rename", "data/install.new", 1))
    pair.leave_behind()
    chosen, hits = some_of(points, one_of(verbs), dice, 4), 0
    for verb, point in chosen:
        calls = pair.install(line_of(verb, point), f"seed {dice.randrange(1 << 30)}")
        hits += any(call.what == verb for call in calls)
        if pair.learner.is_over():
            pair.learner.check_log()
            if points.index(point) < named:
                continue
            pair.install()
        assert not pair.learner.is_over(), pair.learner.last_log()
        pair.leave_behind()
    pair.install()
    pair.agree()
    assert hits > len(chosen) / 2, f"{hits} of {len(chosen)} calls came about"


# ---- errors ----


BROKEN = [
    (phase_writes, (1, 2, 5), "sync", "data/wal/*", "the log cannot be written (input/output error): nothing more can be promised; check the disk"),
    (phase_segments, (1, 2, 3), "syncdir", "data/wal", "the log cannot be"),
    (phase_writes, (1, 1), "sync", "data/store/data.mdb", "the store cannot be written"),
    (phase_defragmentation, (2,), "syncdir", "data", "cannot sync the data directory"),
]


@pytest.mark.parametrize("phase, numbers, call, file, message", BROKEN, ids=[f"{row[2]} of {row[3]}" for row in BROKEN])
def test_a_sync_that_fails_ends_the_node_for_good(make_node, phase, numbers, call, file, message):
    """It says so, does not try again, and has acknowledged nothing that the disk does not have: power is cut when it ends."""
    dice = random.Random(f"{SEED} {call} {file}")
    node = started(make_node)
    for n in numbers:
        since = len(node.calls())
        node.plan(f"eio {n} {call} {file}", "cut-at-end", f"seed {dice.randrange(1 << 30)}")
        phase(node, dice)
        node.wait_end()
        last = node.last_log().strip().splitlines()[-1]
        assert node.was_killed() and message in last, last
        calls = node.calls(since)
        failed = next(k for k, c in enumerate(calls) if c.what == "eio")
        assert not [c for c in calls[failed + 1:] if c.file == calls[failed].file and c.name == call]
        restart(node)


def test_a_sync_that_fails_at_a_start_is_told_and_the_next_start_works(make_node):
    dice = random.Random(SEED)
    first = started(make_node)
    syncs = [point for point in points_of(first.calls()) if point.name in ("sync", "syncdir")]
    for point in syncs:
        node = make_node()
        if node.start(line_of("eio", point), f"seed {dice.randrange(1 << 30)}"):
            node.stop()
        else:
            assert "error" in node.last_log() or "fatal" in node.last_log()
        works(node, dice)


NEEDS_SPACE = ("create", "mkdir", "write", "commit", "allocate", "rename", "exchange")


def full_at(node, phase, dice, point, calls):
    """The disk is full for so many calls from this one on; then there is space again, and power is lost when the node ends over it."""
    node.plan(f"full {point.number}-{point.number + calls - 1} {point.name if calls == 1 else ','.join(NEEDS_SPACE)} {point.file if calls == 1 else '*'}",
              "cut-at-end", f"seed {dice.randrange(1 << 30)}")
    phase(node, dice)
    node.plan("cut-at-end")
    if node.goes_on():
        return
    said = node.last_log()
    assert "make space on" in said or "no space left" in said.lower(), said
    restart(node)


@pytest.mark.parametrize("name", ["writes", "segments", "compaction", "defragmentation"])
def test_a_disk_that_is_full_at_any_call_costs_nothing_that_was_acknowledged(make_node, name):
    dice = random.Random(f"{SEED} {name}")
    node, phase = started(make_node), PHASES[name]
    points = [point for point in points_of(calls_of(node, phase, dice)) if point.name in NEEDS_SPACE]
    for calls, point in some_of(points, (1, 6), dice, 2):
        full_at(node, phase, dice, point, calls)


def test_a_disk_that_is_full_at_any_call_of_the_first_start_is_told_and_a_later_start_works(make_node):
    dice = random.Random(SEED)
    first = started(make_node)
    points = [point for point in points_of(first.calls()) if point.name in NEEDS_SPACE]
    for calls, point in some_of(points, (1, 1000), dice, 0):
        node = make_node()
        if node.start(f"full {point.number}-{point.number + calls - 1} {point.name} {point.file}", f"seed {dice.randrange(1 << 30)}"):
            node.plan()
            node.stop()
        else:
            assert re.search("no space|disk full|make space", node.last_log(), re.I), node.last_log()
        works(node, dice)
