"""Measures the log and the store of one node: starts, memory and files with many keys, compaction and defragmentation, and the tail of
a serial write while the node is at such work. Beside it etcd, in the same run, when it is installed. What is measured and how to read
it: docs/benchmarks.md."""

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time

import bench_etcd
from bench_common import (Trouble, about, add_common_options, check_machine, clean_up_undisturbed, end_children, file_system, mounts_below,
                          positive, print_about, print_targets, say, targets_as_json, unmount_below, write_json)
from bench_node import Load, Node, SerialWriter, fill, tail_of

REVISION_KEYS = 1000
NOISE = 2  # windows without any disturbance whose p99 differ by more say that the machine was not quiet
MEMORY = "/dev/shm"
SETTLE_SECONDS = 2  # after a start, before memory is looked at


def median_of(measures, name):
    return statistics.median(measure[name] for measure in measures)


def restarts_of(server, rounds, *read):
    """In turn after an orderly stop and after a kill. `read`: what its start waits for."""
    stopped, killed, memory = [], [], []
    for _ in range(rounds):
        for how, took_ms in ((signal.SIGTERM, stopped), (signal.SIGKILL, killed)):
            server.stop(how)
            took_ms.append(server.start(*read))
            time.sleep(SETTLE_SECONDS)
            memory.append(server.memory())
    return {
        "restart_ms": statistics.median(stopped),
        "restart_after_kill_ms": statistics.median(killed),
        "restarts_ms": stopped + killed,
        **{name: median_of(memory, name) for name in memory[0]},
        "data_file_bytes": server.data_file_bytes(),
        "log_bytes": server.log_bytes(),
    }


# ---- keelfs ----


class KeelBench:
    """Each part has a node of its own in `directory`, which is gone afterwards. `tails` has for each disturbance two lists of latencies:
    without it and with it."""

    def __init__(self, directory, memory, size):
        self.directory = directory
        self.memory = memory  # a directory in memory
        self.size = size  # the arguments: how much is measured
        self.keys = {}
        self.revisions = {}
        self.tails = {}
        self.grown = {}  # by how many bytes the log has become larger meanwhile

    @contextlib.contextmanager
    def node(self, name, **where):
        node = Node(os.path.join(self.directory, name), flags=self.size.flags, **where)
        try:
            node.start()
            yield node
        finally:
            node.take_down()

    def with_keys(self):
        """Keys come on top of those that are there already; defragmentation is measured with the fewest: it can be repeated then."""
        with self.node("keys") as node:
            for count in self.size.keys:
                say(f"keelfs: {count} keys")
                fill(node, f"keys{count}", files=count - node.keys())
                node.wait_until_stored()
                self.keys[count] = {"after_fill": node.memory(), **restarts_of(node, self.size.rounds, f"keys{count}/d0/f0")}
                if count == self.size.keys[0]:
                    self.defragmented(node)

    def in_turn(self, node, name, disturb, prepare=None):
        """A writer's latencies without and with what `disturb` does, again and again."""
        with SerialWriter(node) as writer:
            for number in range(self.size.rounds):
                say(f"keelfs: {name}, round {number + 1} of {self.size.rounds}")
                if prepare is not None:
                    prepare()
                with writer.during("idle"):
                    time.sleep(self.size.seconds)
                disturb(writer)
        self.tails[name] = writer.windows

    def defragmented(self, node):
        """The store is full, so that the whole of it is copied each time."""
        def defragment(writer):
            with writer.during("disturbed"):
                node.defragment()

        self.in_turn(node, "defragmentation", defragment)

    def with_revisions(self):
        with self.node("revisions") as node:
            say(f"keelfs: {self.size.revisions} revisions of {REVISION_KEYS} keys")
            fill(node, "revisions", files=REVISION_KEYS, count=self.size.revisions)
            node.wait_until_stored()
            before = node.data_file_bytes()
            say("keelfs: compaction")
            took = node.compact()
            node.wait_until_defragmented()
            compacted = node.data_file_bytes()
            node.defragment()
            self.revisions = {"compaction_s": took, "data_file_bytes_before": before, "data_file_bytes": compacted,
                              "data_file_bytes_after_defrag": node.data_file_bytes()}
            self.compacted(node)

    def compacted(self, node):
        def churn():
            fill(node, "revisions", files=REVISION_KEYS, count=self.size.revisions // 4)
            node.wait_until_stored(but=10_000)

        def compact(writer):
            with writer.during("disturbed"):
                node.compact()

        self.in_turn(node, "compaction", compact, prepare=churn)

    def with_segments(self):
        """A young log fills its segments with zeroes ahead; one that has grown to what is kept uses old ones again."""
        with self.node("segments") as node:
            self.written_beside(node, "segments filled ahead")
            while not node.uses_segments_again():
                node.log_more()
            self.written_beside(node, "segments used again")

    def written_beside(self, node, name):
        def write_more(writer):
            with Load(node, "--clients", 4, "--size", 65536, "--rate", 160), writer.during("disturbed"):
                time.sleep(self.size.seconds)

        before = node.log_bytes()
        self.in_turn(node, name, write_more)
        self.grown[name] = node.log_bytes() - before

    def with_commits(self):
        """Two nodes have their logs on the disk. One has its store there too, the other's is in memory: that is what no commit on the
        disk is like. They take turns under the same load."""
        windows = {"idle": [], "disturbed": []}
        with self.node("commits") as on_disk, self.node("no-commits", data=os.path.join(self.memory, "data")) as in_memory:
            for number in range(self.size.rounds):
                say(f"keelfs: LMDB commits, round {number + 1} of {self.size.rounds}")
                for node, label in ((in_memory, "idle"), (on_disk, "disturbed")):
                    with Load(node, "--clients", 8, "--rate", 1000), SerialWriter(node) as writer:
                        with writer.during(label):
                            time.sleep(self.size.seconds)
                    windows[label] += writer.windows[label]
        self.tails["LMDB commits"] = windows

    def all(self):
        self.with_keys()
        self.with_revisions()
        self.with_segments()
        self.with_commits()


# ---- etcd ----


class EtcdBench:
    def __init__(self, directory, size):
        self.directory = directory
        self.size = size
        self.keys = {}
        self.revisions = {}

    @contextlib.contextmanager
    def server(self, name):
        server = bench_etcd.Etcd(os.path.join(self.directory, name))
        try:
            server.start()
            yield server
        finally:
            server.take_down()

    def with_keys(self):
        made = 0
        with self.server("etcd-keys") as server:
            for count in self.size.keys:
                say(f"etcd: {count} keys")
                server.make_keys(made, count)
                made = count
                time.sleep(SETTLE_SECONDS)
                self.keys[count] = {"after_fill": server.memory(), **restarts_of(server, self.size.rounds)}

    def with_revisions(self):
        with self.server("etcd-revisions") as server:
            say(f"etcd: {self.size.revisions} revisions of {REVISION_KEYS} keys")
            server.make_revisions(REVISION_KEYS, self.size.revisions)
            before = server.data_file_bytes()
            say("etcd: compaction")
            took = server.compact()
            compacted = server.data_file_bytes()
            server.defragment()
            self.revisions = {"compaction_s": took, "data_file_bytes_before": before, "data_file_bytes": compacted,
                              "data_file_bytes_after_defrag": server.data_file_bytes()}

    def all(self):
        self.with_keys()
        self.with_revisions()


# ---- the report ----

TAIL_TARGETS = {
    "segments filled ahead": "p99 of a write, segments filled / idle",
    "LMDB commits": "p99 of a write, LMDB commits / none",
    "compaction": "p99 of a write, compaction / idle",
    "defragmentation": "p99 of a write, defragmentation / idle",
}


def spread_of(windows):
    each = tail_of(windows)["windows_p99_us"]
    return max(each) / min(each)


def tail_ratio(windows):
    return tail_of(windows["disturbed"])["p99_us"] / tail_of(windows["idle"])["p99_us"]


def targets(keel, etcd):
    """Name -> (figure, relation, wanted, unit). The figures that the project has set itself."""
    wanted = {}
    if etcd is not None:
        keys = min(keel.keys)
        ours, theirs = keel.keys[keys], etcd.keys[keys]
        wanted[f"restart with {keys} keys"] = (ours["restart_ms"] / theirs["restart_ms"], "<=", 0.25, "x etcd")
        wanted["... after kill -9"] = (ours["restart_after_kill_ms"] / theirs["restart_after_kill_ms"], "<=", 0.25, "x etcd")
        wanted[f"resident memory with {keys} keys"] = (ours["rss_bytes"] / theirs["rss_bytes"], "<=", 1 / 3, "x etcd")
        ours, theirs = keel.revisions, etcd.revisions
        wanted["etcd's time for compaction"] = (theirs["compaction_s"] / ours["compaction_s"], ">=", 5.0, "x keelfs")
        wanted["data file after compaction"] = (ours["data_file_bytes"] / theirs["data_file_bytes"], "<=", 1.0, "x etcd")
    for name, label in TAIL_TARGETS.items():
        wanted[label] = (tail_ratio(keel.tails[name]), "<=", 2.0, "x")
    return wanted


def mib(size):
    return f"{size / (1 << 20):.1f}"


KEY_ROWS = [
    ("restart, ms", "restart_ms", lambda value: f"{value:.0f}"),
    ("restart after kill -9, ms", "restart_after_kill_ms", lambda value: f"{value:.0f}"),
    ("resident memory, MiB", "rss_bytes", mib),
    ("... of it not of files", "rss_anon_bytes", mib),
    ("resident memory of the poker, MiB", "poker_rss_bytes", mib),
    ("data file, MiB", "data_file_bytes", mib),
    ("log, MiB", "log_bytes", mib),
]
REVISION_ROWS = [
    ("compaction, s", "compaction_s", lambda value: f"{value:.2f}"),
    ("data file before it, MiB", "data_file_bytes_before", mib),
    ("data file after it, MiB", "data_file_bytes", mib),
    ("... and after defragmentation, MiB", "data_file_bytes_after_defrag", mib),
]


def print_rows(title, rows, ours, theirs, out):
    print(f"\n{title:<48}{'keelfs':>12}{'etcd':>12}", file=out)
    for label, name, text in rows:
        other = text(theirs[name]) if theirs is not None and name in theirs else "-"
        print(f"{label:<48}{text(ours[name]):>12}{other:>12}", file=out)


def print_memory_after_fill(keel, etcd, count, out):
    other = mib(etcd.keys[count]["after_fill"]["rss_bytes"]) if etcd is not None else "-"
    print(f"{'resident memory before any restart, MiB':<48}{mib(keel.keys[count]['after_fill']['rss_bytes']):>12}{other:>12}", file=out)


def print_tails(keel, out):
    print(f"\n{'serial write, us':<30}{'p50':>7}{'p99':>8}{'p99.9':>8}{'writes':>8}   p99 of each window", file=out)
    for name, windows in keel.tails.items():
        for label in ("idle", "disturbed"):
            tail = tail_of(windows[label])
            each = " ".join(f"{p99:.0f}" for p99 in tail["windows_p99_us"])
            print(f"{name if label == 'disturbed' else '  without':<30}{tail['p50_us']:>7.0f}{tail['p99_us']:>8.0f}"
                  f"{tail['p999_us']:>8.0f}{tail['count']:>8}   {each}", file=out)
        print(f"{'  ratio of p99':<37}{tail_ratio(windows):>8.2f}", file=out)
        if name in keel.grown:
            print(f"{'  filled with zeroes, MiB':<37}{mib(keel.grown[name]):>8}", file=out)
    unsteady = [name for name, windows in keel.tails.items() if spread_of(windows["idle"]) > NOISE]
    if unsteady:
        print(f"\nThe windows without differ by more than a factor of {NOISE}: something else used the machine, and the ratio is worth "
              f"little: {', '.join(unsteady)}.", file=out)


def report(keel, etcd, facts, out):
    print_about("1 node", facts, out)
    print(f"beside it: {facts['etcd']}", file=out)
    for count in keel.keys:
        print_rows(f"{count} keys of 256 bytes", KEY_ROWS, keel.keys[count], etcd.keys[count] if etcd is not None else None, out)
        print_memory_after_fill(keel, etcd, count, out)
    print_rows(f"{keel.size.revisions} revisions of {REVISION_KEYS} keys", REVISION_ROWS, keel.revisions,
               etcd.revisions if etcd is not None else None, out)
    print_tails(keel, out)
    print_targets(targets(keel, etcd), out)


def as_json(keel, etcd, facts):
    tails = {name: {label: tail_of(windows[label]) for label in windows} for name, windows in keel.tails.items()}
    return {
        "about": facts,
        "keelfs": {"keys": keel.keys, "revisions": keel.revisions, "tails": tails, "filled_bytes": keel.grown},
        "etcd": {"keys": etcd.keys, "revisions": etcd.revisions} if etcd is not None else None,
        "targets": targets_as_json(targets(keel, etcd)),
    }


# ---- beginning and end ----


def list_of(convert):
    return lambda text: [convert(part) for part in text.split(",")]


def read_arguments(words):
    parser = argparse.ArgumentParser(
        prog="tools/bench store", description=__doc__,
        epilog="KEEL_BUILD=DIR measures the build in another directory. Debian's package with etcd is called etcd-server.")
    parser.add_argument("--quick", action="store_true", help="as --keys 100000 --revisions 200000 --rounds 3 --seconds 1.5")
    parser.add_argument("--keys", metavar="N[,N...]", type=list_of(positive(int, 100, 10_000_000)),
                        help="how many there are, one number after the other (100000,1000000)")
    parser.add_argument("--revisions", metavar="N", type=positive(int, 10_000, 10_000_000), help="to be compacted (1000000)")
    parser.add_argument("--rounds", metavar="N", type=positive(int, 1, 100), help="of restarts, and of tails without and with something (5)")
    parser.add_argument("--seconds", metavar="S", type=positive(float, 0.1, 600), help="of a tail without (3)")
    parser.add_argument("--no-etcd", action="store_true", help="measure keelfs alone")
    add_common_options(parser)
    parser.add_argument("flags", nargs="*", metavar="-- KEELFS_FLAG", help="given to each node")
    arguments = parser.parse_args(words)
    arguments.keys = arguments.keys or ([100_000] if arguments.quick else [100_000, 1_000_000])
    arguments.keys.sort()
    arguments.revisions = arguments.revisions or (200_000 if arguments.quick else 1_000_000)
    arguments.rounds = arguments.rounds or (3 if arguments.quick else 5)
    arguments.seconds = arguments.seconds or (1.5 if arguments.quick else 3.0)
    return arguments


def etcd_version(arguments):
    """The version, and whether it is to be measured."""
    if arguments.no_etcd:
        return "etcd is not wanted", False
    version = bench_etcd.version()
    if version is None:
        return "etcd is not installed (apt-get install etcd-server): keelfs alone", False
    return version, True


def clean_up(directory, memory):
    """Also when a node was just being taken down."""
    clean_up_undisturbed()
    end_children()
    unmount_below(directory)
    shutil.rmtree(memory)
    if mounts_below(directory):
        say(f"a node could not be taken down: {directory} is left behind")
    else:
        shutil.rmtree(directory)


def measure(arguments):
    if not os.path.isdir(MEMORY) or file_system(MEMORY) != "tmpfs":
        raise Trouble(f"{MEMORY} is not in memory")
    directory = os.path.realpath(tempfile.mkdtemp(prefix="keel-bench-", dir=arguments.dir))
    memory = tempfile.mkdtemp(prefix="keel-bench-", dir=MEMORY)
    version, beside = etcd_version(arguments)
    try:
        facts = about(directory, etcd=version, **{name: getattr(arguments, name) for name in ("revisions", "rounds", "seconds", "flags")})
        say(version)
        keel = KeelBench(directory, memory, arguments)
        keel.all()
        etcd = EtcdBench(directory, arguments) if beside else None
        if beside:
            etcd.all()
    finally:
        clean_up(directory, memory)
    return keel, etcd, facts


def main(words):
    arguments = read_arguments(words)
    check_machine(arguments)
    keel, etcd, facts = measure(arguments)
    report(keel, etcd, facts, sys.stdout)
    if arguments.json:
        write_json(arguments.json, as_json(keel, etcd, facts))
