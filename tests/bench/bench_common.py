"""What the two parts of tools/bench share: children that do not outlive it, the load generator, facts about the machine, and the
table of targets."""

import argparse
import datetime
import json
import os
import platform
import signal
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
BUILD = os.environ.get("KEEL_BUILD", os.path.join(ROOT, "build"))
GENERATOR = os.path.join(BUILD, "tests", "bench", "keel-bench")

STEP_SECONDS = 60  # nothing that is started takes longer, apart from what it measures


class Trouble(Exception):
    """It cannot be measured: what and why, for the user."""


# ---- running things ----

children = []


def start(arguments, **options):
    """A child that end_children() ends if it is still there."""
    child = subprocess.Popen(arguments, text=True, stdout=subprocess.PIPE, **options)
    children.append(child)
    return child


def finish(child, seconds):
    """What the child printed. One that takes too long is left to end_children(), after the mounts are gone: it may
    hang in one of them, so that not even a kill ends it."""
    try:
        output, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Trouble(f"{' '.join(map(str, child.args))[:200]}\n  takes longer than {seconds:.0f} s") from None
    children.remove(child)
    if child.returncode != 0:
        raise Trouble(f"{' '.join(map(str, child.args))[:200]}\n  ended with {child.returncode}")
    return output


def run(*arguments, seconds=STEP_SECONDS, **options):
    return finish(start(list(arguments), **options), seconds)


def stop(child, how):
    child.send_signal(how)
    try:
        child.wait(timeout=STEP_SECONDS)
    except subprocess.TimeoutExpired:
        raise Trouble(f"{child.args[0]} does not end") from None
    children.remove(child)


class Server:
    """A process that is started and stopped again and again."""

    process = None

    def run(self, command, **options):
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)
        children.append(self.process)

    def stop(self, how=signal.SIGTERM):
        stop(self.process, how)
        self.process = None

    def take_down(self):
        """Whatever state it is in."""
        if self.process is not None:
            self.stop(signal.SIGKILL)


def generate(command, *arguments, seconds):
    """Runs keel-bench; its figures."""
    words = [GENERATOR, command, "--seconds", str(seconds), *map(str, arguments)]
    return json.loads(run(*words, seconds=STEP_SECONDS + seconds))


def end_children():
    for child in children:
        child.kill()
    for child in children:
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            say(f"process {child.pid} is left behind: it does not end")


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


# ---- signals ----

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interrupted(number, _):
    raise SystemExit(128 + number)


def clean_up_when_interrupted():
    for number in ENDING:
        signal.signal(number, interrupted)


def clean_up_undisturbed():
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


# ---- the machine ----


def file_system(directory):
    return run("findmnt", "-n", "-o", "FSTYPE", "-T", directory).split()[-1]  # the last one covers the others


def mounts_below(directory):
    with open("/proc/self/mountinfo") as file:
        return [line.split()[4] for line in file if line.split()[4].startswith(directory + "/")]


def unmount_below(directory):
    for mount in reversed(mounts_below(directory)):
        subprocess.run(["umount", "-l", mount], check=False)


def process_cpu_us(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1e6 / os.sysconf("SC_CLK_TCK")


def check_machine(arguments):
    if os.geteuid() != 0:
        raise Trouble("only root can mount and kill the nodes: run it as root")
    if not os.path.isdir(arguments.dir):
        raise Trouble(f"there is no directory {arguments.dir}: give another one with --dir")
    if file_system(arguments.dir) in ("tmpfs", "ramfs"):
        raise Trouble(f"{arguments.dir} is in memory, where a sync costs nothing: "
                      "give another directory with --dir")
    if arguments.json and not os.path.isdir(os.path.dirname(os.path.abspath(arguments.json))):
        raise Trouble(f"there is no directory for {arguments.json}")
    if "KEEL_BUILD" not in os.environ:
        run(os.path.join(ROOT, "tools", "build"), seconds=20 * STEP_SECONDS)
    os.environ.setdefault("KEELFS", os.path.join(BUILD, "src", "keelfs"))
    for binary in (GENERATOR, os.environ["KEELFS"]):
        if not os.access(binary, os.X_OK):
            raise Trouble(f"there is no {binary}: run tools/build")


def about(directory, **more):
    model = "unknown"
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    revision = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], text=True,
                              capture_output=True, check=False).stdout.strip()
    return {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "revision": revision or "unknown",
        "kernel": platform.release(),
        "cpu": model,
        "cpus": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "file_system": file_system(directory),
        **more,
    }


def print_about(what, facts, out):
    print(f"keelfs {facts['revision']}, {what} on one machine: {facts['cpus']} x {facts['cpu']}, "
          f"Linux {facts['kernel']}, {facts['file_system']}; {facts['time']}", file=out)
    if facts["load_before"] > 0.5:
        print(f"The machine was not idle before (load {facts['load_before']:.1f}): its figures say little.", file=out)


# ---- options ----


def positive(kind, least, most):
    def convert(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text}: not a number from {least} to {most}")
        return value

    return convert


def add_common_options(parser):
    parser.add_argument("--dir", default="/var/tmp", help="where the data goes, in a new directory (/var/tmp)")
    parser.add_argument("--json", metavar="FILE", help="write all figures there too")


# ---- targets: name -> (figure, relation, wanted, unit) ----


def is_met(figure, relation, wanted):
    return figure >= wanted if relation == ">=" else figure <= wanted


def print_targets(targets, out):
    print(f"\n{'targets':<44}{'measured':>11}{'wanted':>14}", file=out)
    for name, (figure, relation, wanted, unit) in targets.items():
        verdict = "met" if is_met(figure, relation, wanted) else "MISSED"
        print(f"{name:<44}{figure:>11.2f}{relation + f' {wanted:.2f}':>14} {unit:<9}{verdict}", file=out)


def targets_as_json(targets):
    return {
        name: {"measured": figure, "relation": relation, "wanted": wanted, "unit": unit, "met": is_met(figure, relation, wanted)}
        for name, (figure, relation, wanted, unit) in targets.items()
    }


def write_json(path, figures):
    with open(path, "w") as file:
        json.dump(figures, file, indent=1)
        file.write("\n")
