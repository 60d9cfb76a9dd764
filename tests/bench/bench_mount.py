"""Measures keelfs through its mounts, on three nodes on this machine, and in the same run the floor: the least that a
replicated write costs here. What is measured and how to read it: docs/benchmarks.md."""

import argparse
import contextlib
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from bench_common import (GENERATOR, ROOT, STEP_SECONDS, Trouble, about, add_common_options, check_machine, children,
                          clean_up_undisturbed, end_children, finish, generate, mounts_below, positive, print_about, print_targets,
                          process_cpu_us, run, say, start, targets_as_json, write_json)

CLUSTER = os.path.join(ROOT, "tools", "cluster")

NODES = 3
TRIES = 2  # of a measure of rate; the better one counts
NOISE = 0.8  # floors of one run that differ by more say that it was disturbed

SHELL_ECHO = 'for ((i = 0; i < 50; i++)); do echo "v$i" >"$1/shell"; done'
SHELL_CAT = 'for ((i = 0; i < 10; i++)); do cat "$1/shell" >/dev/null; done'
# Prints how many commands were run, how many µs each took, and how many failed: a builtin's error is its status.
SHELL_LOOP = """
echo v >"$1/shell" || exit 1
set -e
begin=${EPOCHREALTIME/[.,]/}
end=$((begin + $2)) now=$begin n=0
while ((now < end)); do
    BODY
    n=$((n + COUNT)) now=${EPOCHREALTIME/[.,]/}
done
echo "$n $((now - begin))"
"""


# ---- the cluster ----


def tell_cluster(verb, *arguments, seconds=STEP_SECONDS):
    """Runs tools/cluster, in a session of its own: Ctrl-C must not end it between the start of a node and the note
    of its pid."""
    return run(CLUSTER, verb, *arguments, seconds=seconds, start_new_session=True)


class Cluster:
    def __init__(self, directory, flags):
        self.directory = directory
        self.flags = flags

    def up(self):
        flags = ["--", *self.flags] if self.flags else []
        tell_cluster("up", self.directory, "-n", str(NODES), *flags, seconds=4 * STEP_SECONDS)

    def leader(self):
        return int(tell_cluster("leader", self.directory))

    def start(self, node):
        tell_cluster("start", self.directory, str(node), seconds=2 * STEP_SECONDS)

    def path(self, node, name):
        return os.path.join(self.directory, f"n{node}", "mnt", name)

    def pid(self, node):
        with open(os.path.join(self.directory, f"n{node}", "pid")) as file:
            return int(file.read())

    def status(self, node):
        text = run("cat", self.path(node, "@keel/status"))
        return dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)

    def wait_until_caught_up(self, node):
        """The node has a leader and has applied all that was committed when this was called."""
        end = time.monotonic() + STEP_SECONDS
        committed = int(self.status(self.leader())["commit_index"])
        while time.monotonic() < end:
            status = self.status(node)
            if status["stale"] == "no" and int(status["applied_index"]) >= committed:
                return
            time.sleep(0.1)
        raise Trouble(f"node {node} has not caught up within {STEP_SECONDS} s of its start")

    def processes(self):
        """pid -> (what, node). What else a node runs (the poker) is its child, or shares its session."""
        nodes = {self.pid(i): i for i in range(1, NODES + 1)}
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/stat") as file:
                    _, parent, _, session = file.read().rsplit(")", 1)[1].split()[:4]
            except OSError:
                continue
            pid = int(entry)
            node = nodes.get(pid) or nodes.get(int(parent)) or nodes.get(int(session))
            if node:
                found[pid] = ("keelfs" if pid in nodes else "poker", node)
        return found


# ---- measures ----


class Bench:
    """One run. `figures` collects what was measured, by name; `cpu` the CPU time a write, by process."""

    def __init__(self, cluster, plain, seconds, rounds):
        self.cluster = cluster
        self.plain = plain  # a directory on the disk, without keelfs
        self.seconds = seconds
        self.rounds = rounds
        self.figures = {}
        self.cpu = {}
        self.floors = []
        self.directories = 0

    def directory(self, *nodes):
        """A new directory, as paths in the mounts of these nodes. New for each measure, and made through the first
        of the nodes: what a node has looked at lately, it raises events for, which costs the next measure."""
        self.directories += 1
        paths = [self.cluster.path(node, f"bench{self.directories}") for node in nodes]
        run("mkdir", paths[0])
        return paths

    def follower(self, leader):
        return next(i for i in range(1, NODES + 1) if i != leader)

    def steady(self, measure):
        """measure(leader), again if the leader has changed meanwhile."""
        for _ in range(3):
            leader = self.cluster.leader()
            result = measure(leader)
            if self.cluster.leader() == leader:
                return result
            say("the leader has changed meanwhile: again")
        raise Trouble("the leader changes all the time")

    def best(self, measure):
        return max((self.steady(measure) for _ in range(TRIES)), key=lambda figures: figures["rate"])

    def floor(self):
        say("floor")
        self.floors.append(generate("floor", self.plain, seconds=self.seconds))

    def write(self, name, clients, where, *options, watch=False):
        """where(leader): the nodes that the clients are on."""

        def measure(leader, paths):
            processes = self.cluster.processes()
            pids = [word for pid in processes for word in ("--pid", pid)]
            figures = generate("write", "--clients", clients, *options, *pids, *paths, seconds=self.seconds)
            figures["cpu_a_write_us"] = self.split_cpu(figures, processes, leader)
            return figures

        def measure_at(leader):
            if watch:
                return self.watched(measure, leader)
            return measure(leader, self.directory(*where(leader)))

        say(name)
        self.figures[name] = self.best(measure_at)
        self.cpu[name] = self.figures[name]["cpu_a_write_us"]

    def watched(self, measure, leader):
        """On the leader, with a reader of inotify events on each node, as a process of its own."""
        paths = self.directory(*range(1, NODES + 1))
        watcher = start([GENERATOR, "watch", *paths], stdin=subprocess.PIPE)
        if not select.select([watcher.stdout], [], [], STEP_SECONDS)[0]:
            raise Trouble(f"inotify watches are not in place after {STEP_SECONDS} s")
        # Unbuffered: what follows is for communicate(), which reads the descriptor itself.
        if os.read(watcher.stdout.fileno(), 6) != b"ready\n":
            raise Trouble("the watcher has ended")
        before = process_cpu_us(watcher.pid)
        figures = measure(leader, [paths[leader - 1]])
        used = process_cpu_us(watcher.pid) - before
        figures["watched"] = json.loads(finish(watcher, STEP_SECONDS))["watched"]
        figures["cpu_a_write_us"]["watcher"] = used / max(1, figures["count"])
        return figures

    def split_cpu(self, figures, processes, leader):
        """µs of CPU a write, by role. "rest" is the kernel's threads and whatever else runs on the machine."""
        count = max(1, figures["count"])
        used = figures["cpu_us"]
        split = {"keelfs, leader": 0.0, "keelfs, followers": 0.0, "poker, leader": 0.0, "poker, followers": 0.0}
        for pid, (what, node) in processes.items():
            split[f"{what}, {'leader' if node == leader else 'followers'}"] += used[str(pid)] / count
        split["load generator"] = used["self"] / count
        split["rest"] = max(0.0, used["machine"] / count - sum(split.values()))
        return split

    def read(self, name, clients, where):
        def measure(leader):
            paths = self.directory(*where(leader))
            return generate("read", "--clients", clients, *paths, seconds=self.seconds)

        say(name)
        self.figures[name] = self.best(measure)

    def shell(self, name, body, count, path):
        """path(leader). Microseconds a command."""
        script = SHELL_LOOP.replace("BODY", body).replace("COUNT", str(count))

        def measure(leader):
            words = ["bash", "-c", script, "bash", path(leader), str(int(self.seconds * 1e6))]
            done, taken_us = map(int, run(*words, seconds=STEP_SECONDS + self.seconds).split())
            return {"count": done, "rate": done * 1e6 / taken_us, "mean_us": taken_us / done, "errors": 0}

        say(name)
        self.figures[name] = self.best(measure)

    def event(self):
        def measure(leader):
            paths = self.directory(leader, self.follower(leader))
            return generate("event", *paths, seconds=self.seconds)

        say("event")
        self.figures["event"] = self.steady(measure)

    def gap(self):
        rounds = []
        for number in range(self.rounds):
            say(f"gap, round {number + 1} of {self.rounds}")
            leader = self.cluster.leader()
            others = self.directory(*(i for i in range(1, NODES + 1) if i != leader))
            rounds.append(generate("gap", "--victim", self.cluster.pid(leader), *others, seconds=1))
            self.cluster.start(leader)
            self.cluster.wait_until_caught_up(leader)
        self.figures["gap"] = {
            "rounds": rounds,
            "first_ms": statistics.median(r["first_ms"] for r in rounds),
            "all_ms": statistics.median(r["all_ms"] for r in rounds),
            "exit_ms": statistics.median(r["exit_ms"] for r in rounds),
            "worst_ms": max(r["first_ms"] for r in rounds),
            "errors": sum(r["errors"] for r in rounds),
        }

    def all(self):
        def on_leader(leader):
            return [leader]

        def on_follower(leader):
            return [self.follower(leader)]

        def on_all(_):
            return list(range(1, NODES + 1))

        def mount(leader):
            return self.directory(leader)[0]

        def plain(_):
            return self.plain

        self.floor()
        self.write("write 1", 1, on_leader)
        self.write("write 10", 10, on_leader)
        self.write("write 100", 100, on_leader)
        self.write("write 100 all nodes", 100, on_all)
        self.write("write 1 follower", 1, on_follower)
        self.write("replace 1", 1, on_leader, "--replace")
        self.write("write 100 watched", 100, on_leader, watch=True)
        for place, where in (("leader", on_leader), ("follower", on_follower)):
            for clients in (1, 100):
                self.read(f"read {clients} {place}", clients, where)
        self.shell("echo", SHELL_ECHO, 50, mount)
        self.shell("echo plain", SHELL_ECHO, 50, plain)
        self.shell("cat", SHELL_CAT, 10, mount)
        self.shell("cat plain", SHELL_CAT, 10, plain)
        self.event()
        self.gap()
        self.floor()


# ---- the report ----


def floor_rate(bench):
    """The better of the two: so nothing looks better than it is because the floor was disturbed."""
    return max(floor["rate"] for floor in bench.floors)


def targets(bench):
    """Name -> (figure, relation, wanted, unit). The figures that the project has set itself."""
    floor = floor_rate(bench)
    rate = {name: figures["rate"] for name, figures in bench.figures.items() if "rate" in figures}
    wanted_echo_us = 1.5e6 / rate["write 1"] + 100
    return {
        "serial write": (rate["write 1"] / floor, ">=", 0.5, "x floor"),
        "100 writers": (rate["write 100"] / floor, ">=", 4.0, "x floor"),
        "open+read+close, 1 client on the leader": (rate["read 1 leader"] / floor, ">=", 8.0, "x floor"),
        "open+read+close, 100 clients on the leader": (rate["read 100 leader"] / floor, ">=", 8.0, "x floor"),
        "open+read+close, 1 client on a follower": (rate["read 1 follower"] / floor, ">=", 2.0, "x floor"),
        "open+read+close, 100 clients on a follower": (rate["read 100 follower"] / floor, ">=", 2.0, "x floor"),
        "a shell's echo: 1.5 serial writes + 100 us": (
            bench.figures["echo"]["mean_us"], "<=", wanted_echo_us, "us"),
        "kill -9 of the leader to the next write": (bench.figures["gap"]["first_ms"], "<=", 300.0, "ms"),
    }


RATE_ROWS = [
    ("write, 1 writer", "write 1"),
    ("write, 10 writers", "write 10"),
    ("write, 100 writers", "write 100"),
    ("write, 100 writers spread over all nodes", "write 100 all nodes"),
    ("write, 100 writers, a watcher on each node", "write 100 watched"),
    ("write, 1 writer on a follower", "write 1 follower"),
    ("open(O_TRUNC)+write+close, 1 writer", "replace 1"),
    ("open+read+close, 1 client, leader", "read 1 leader"),
    ("open+read+close, 100 clients, leader", "read 100 leader"),
    ("open+read+close, 1 client, follower", "read 1 follower"),
    ("open+read+close, 100 clients, follower", "read 100 follower"),
]
SHELL_ROWS = [("echo v > f in bash", "echo"), ("cat f in bash", "cat")]


def print_rates(bench, out):
    floor = floor_rate(bench)
    print(f"\n{'rates':<44}{'a second':>11}{'x floor':>9}{'p50 us':>10}{'p99 us':>10}{'errors':>8}", file=out)
    for number, figures in enumerate(bench.floors):
        label = f"floor, serial, {'first' if number == 0 else 'last'} in this run"
        print(f"{label:<44}{figures['rate']:>11.0f}{figures['rate'] / floor:>9.2f}"
              f"{figures['latency_p50_us']:>10.0f}{figures['latency_p99_us']:>10.0f}{0:>8}", file=out)
    for label, name in RATE_ROWS:
        figures = bench.figures[name]
        print(f"{label:<44}{figures['rate']:>11.0f}{figures['rate'] / floor:>9.2f}"
              f"{figures.get('latency_p50_us', 0):>10.0f}{figures.get('latency_p99_us', 0):>10.0f}"
              f"{figures['errors']:>8}", file=out)
    slower = min(figures["rate"] for figures in bench.floors)
    if slower < NOISE * floor:
        print(f"\nThe two floors differ by {1 - slower / floor:.0%}: something else used the machine, and the ratios are "
              "worth little.", file=out)
    print("\nwrite: pwrite(2) of 256 bytes on an open file, each writer its own; it returns when a quorum has it durable."
          "\nOn the leader's mount where nothing else is said. Ratios are to the better floor.", file=out)


def print_others(bench, out):
    print(f"\n{'shell':<44}{'us each':>11}{'on the disk without keelfs':>30}", file=out)
    for label, name in SHELL_ROWS:
        print(f"{label:<44}{bench.figures[name]['mean_us']:>11.0f}"
              f"{bench.figures[name + ' plain']['mean_us']:>30.0f}", file=out)
    event, gap = bench.figures["event"], bench.figures["gap"]
    print(f"\n{'write on the leader -> event on a follower':<44}{'p50 us':>11}{'p99 us':>10}{'lost':>6}", file=out)
    print(f"{'event read (CLOSE_WRITE), since write(2) began':<44}{event.get('event_p50_us', 0):>9.0f}"
          f"{event.get('event_p99_us', 0):>10.0f}{event['lost']:>6}", file=out)
    print(f"{'write(2) returned, since it began':<44}{event.get('write_p50_us', 0):>11.0f}"
          f"{event.get('write_p99_us', 0):>10.0f}", file=out)
    print(f"\n{'kill -9 of the leader, since the kill':<44}{'median ms':>11}   of {len(gap['rounds'])}", file=out)
    each = "  ".join(f"{r['first_ms']:.0f}" for r in gap["rounds"])
    print(f"{'next write on a surviving node':<44}{gap['first_ms']:>11.1f}   ({each})", file=out)
    print(f"{'... on both surviving nodes':<44}{gap['all_ms']:>11.1f}", file=out)
    print(f"{'the killed process was gone':<44}{gap['exit_ms']:>11.1f}", file=out)


def print_cpu(bench, out):
    names = ["write 1", "write 10", "write 100", "write 100 all nodes", "write 100 watched", "write 1 follower"]
    rows = list(dict.fromkeys(row for name in names for row in bench.cpu[name]))
    print(f"\n{'CPU a write, us':<20}" + "".join(f"{name.removeprefix('write '):>15}" for name in names), file=out)
    for row in rows:
        print(f"{row:<20}" + "".join(f"{bench.cpu[name].get(row, 0.0):>15.1f}" for name in names), file=out)
    print(f"{'sum':<20}" + "".join(f"{sum(bench.cpu[name].values()):>15.1f}" for name in names), file=out)
    watched = bench.figures["write 100 watched"]
    seen = ", ".join(str(counts["close_write"]) for counts in watched["watched"])
    print(f"\nwatched: CLOSE_WRITE seen by the watchers of n1..n{NODES}: {seen}, in a run of which "
          f"{watched['count']} writes were measured", file=out)


def as_json(bench, facts):
    return {
        "about": facts,
        "floor": {"rate": floor_rate(bench), "runs": bench.floors},
        "figures": bench.figures,
        "targets": targets_as_json(targets(bench)),
    }


def report(bench, facts, out):
    print_about(f"{NODES} nodes", facts, out)
    print_rates(bench, out)
    print_others(bench, out)
    print_cpu(bench, out)
    print_targets(targets(bench), out)


# ---- beginning and end ----


def clean_up(cluster, directory):
    """First whatever may be starting nodes has to come to its end, then the mounts go: after that, whoever hung in one
    can be ended."""
    clean_up_undisturbed()
    for child in children:
        if child.args[0] == CLUSTER:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=4 * STEP_SECONDS)
    done = subprocess.run([CLUSTER, "down", cluster.directory], check=False, stdin=subprocess.DEVNULL)
    end_children()
    if done.returncode == 0 and not mounts_below(directory):
        shutil.rmtree(directory)
    else:
        say(f"the cluster could not be taken down: {directory} is left behind")


def read_arguments(words):
    parser = argparse.ArgumentParser(
        prog="tools/bench", description=__doc__,
        epilog="tools/bench store [--help] measures the log and the store instead. KEEL_BUILD=DIR measures the build in another directory.")
    parser.add_argument("--seconds", type=positive(float, 0.1, 600), default=3.0, help="of each measure (3)")
    parser.add_argument("--rounds", type=positive(int, 1, 100), default=5, help="of killing the leader (5)")
    add_common_options(parser)
    parser.add_argument("flags", nargs="*", metavar="-- KEELFS_FLAG", help="given to each node")
    return parser.parse_args(words)


def measure(arguments):
    directory = os.path.realpath(tempfile.mkdtemp(prefix="keel-bench-", dir=arguments.dir))
    plain = os.path.join(directory, "plain")
    cluster = Cluster(os.path.join(directory, "cluster"), arguments.flags)
    try:
        facts = about(directory, seconds=arguments.seconds, rounds=arguments.rounds, flags=arguments.flags)
        os.mkdir(plain)
        cluster.up()
        bench = Bench(cluster, plain, arguments.seconds, arguments.rounds)
        bench.all()
    finally:
        clean_up(cluster, directory)
    return bench, facts


def main(words):
    arguments = read_arguments(words)
    check_machine(arguments)
    bench, facts = measure(arguments)
    report(bench, facts, sys.stdout)
    if arguments.json:
        write_json(arguments.json, as_json(bench, facts))
