"""That the load generators count right, on a plain directory, and that tools/bench measures everything and leaves nothing behind.
How fast anything is plays no part here."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("KEEL_BUILD", ROOT / "build"))
GENERATOR = BUILD / "tests" / "bench" / "keel-bench"
TOOL = ROOT / "tools" / "bench"

SECONDS = 0.2


def start(*arguments, **options):
    return subprocess.Popen([GENERATOR, *map(str, arguments)], text=True, stdout=subprocess.PIPE, **options)


def finish(child):
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    return json.loads(output)


def generate(command, *arguments):
    return finish(start(command, "--seconds", SECONDS, *arguments))


def fails_with(code, *arguments):
    done = subprocess.run([GENERATOR, *map(str, arguments)], text=True, capture_output=True, timeout=60)
    assert done.returncode == code
    return done.stderr


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# ---- write and read ----

@pytest.mark.parametrize("how", [[], ["--replace"]])
def test_each_writer_writes_a_file_of_its_own(tmp_path, how):
    figures = generate("write", "--clients", 3, "--size", 300, *how, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f0", "f1", "f2"]
    assert all(len(p.read_bytes()) == 300 for p in tmp_path.iterdir())
    assert figures["count"] >= 3 and figures["errors"] == 0
    assert figures["latency_p50_us"] <= figures["latency_p99_us"] <= figures["latency_max_us"]


def test_writers_take_turns_with_the_directories(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    generate("write", "--clients", 3, tmp_path / "a", tmp_path / "b")
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("f*")} == {"a/f0", "b/f1", "a/f2"}


def test_a_rate_is_what_was_counted_in_the_measured_time(tmp_path):
    figures = generate("read", "--clients", 2, tmp_path)
    assert figures["errors"] == 0
    # The window is a little longer than wanted if the machine was busy, never shorter.
    assert 0 < figures["rate"] <= figures["count"] / SECONDS * 1.001


def test_what_fails_is_an_error_and_not_a_write(tmp_path):
    (tmp_path / "here").mkdir()
    child = start("write", "--replace", "--seconds", 1, tmp_path / "here")
    wait_for((tmp_path / "here" / "f0").exists)
    os.rename(tmp_path / "here", tmp_path / "gone")
    figures = finish(child)
    assert figures["errors"] > 0 and figures["error"] == os.strerror(2)


def test_cpu_time_is_told_for_each_process(tmp_path):
    busy = subprocess.Popen(["bash", "-c", "while :; do :; done"])
    idle = subprocess.Popen(["sleep", "60"])
    try:
        used = finish(start("write", "--seconds", 1, "--pid", busy.pid, "--pid", idle.pid, tmp_path))["cpu_us"]
    finally:
        busy.kill()
        idle.kill()
        busy.wait()
        idle.wait()
    assert used[str(busy.pid)] > 0 and used["self"] > 0
    assert used[str(idle.pid)] == 0
    assert used["machine"] > 0


def test_a_trace_tells_of_each_write(tmp_path):
    before = time.monotonic_ns()
    figures = generate("write", "--trace", tmp_path)
    assert len(figures["begin_ns"]) == len(figures["ns"]) == figures["count"] > 0
    assert figures["begin_ns"] == sorted(figures["begin_ns"])
    assert before < figures["begin_ns"][0] and figures["begin_ns"][-1] + figures["ns"][-1] <= time.monotonic_ns()
    assert max(figures["ns"]) / 1000 == pytest.approx(figures["latency_max_us"])


def test_writers_go_on_until_stdin_ends(tmp_path):
    child = start("write", "--until-eof", "--seconds", SECONDS, tmp_path, stdin=subprocess.PIPE)
    time.sleep(3 * SECONDS)
    assert child.poll() is None
    assert finish(child)["count"] > 0


def test_a_rate_is_not_exceeded(tmp_path):
    begin = time.monotonic()
    figures = generate("write", "--clients", 2, "--rate", 40, tmp_path)
    # Each of the two may begin one at once, and has the whole time of the process for the others.
    assert 0 < figures["count"] <= 40 * (time.monotonic() - begin) + 2


# ---- fill and await ----

def test_fill_makes_as_many_files_as_it_is_told(tmp_path):
    figures = generate("fill", "--clients", 3, "--files", 10, "--size", 300, tmp_path)
    assert figures["files"] == figures["count"] == 10
    made = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("f*"))
    assert made == [f"d{d}/f{f}" for d, count in enumerate((4, 3, 3)) for f in range(count)]
    assert {p.stat().st_size for p in tmp_path.rglob("f*")} == {300}


def test_fill_writes_as_often_as_it_is_told(tmp_path):
    figures = generate("fill", "--clients", 3, "--files", 10, "--count", 31, tmp_path)
    assert figures["count"] == 31
    # The four files of the first client have had seven writes in turn.
    assert [p.read_bytes()[:1] for p in sorted((tmp_path / "d0").iterdir())] == [b"b", b"b", b"b", b"a"]


def test_what_is_awaited_has_been_read_when_it_ends(tmp_path):
    child = start("await", "--seconds", 20, tmp_path / "late")
    time.sleep(0.1)
    assert child.poll() is None
    made = time.monotonic_ns()
    (tmp_path / "late").write_text("x")
    assert made < finish(child)["at_ns"] < time.monotonic_ns()


def test_what_does_not_come_is_named(tmp_path):
    assert "never: No such file" in fails_with(1, "await", "--seconds", SECONDS, tmp_path / "never")


# ---- events ----

def test_the_event_of_each_write_is_seen(tmp_path):
    figures = generate("event", tmp_path, tmp_path)
    assert figures["count"] > 0
    assert figures["lost"] == 0 and figures["errors"] == 0
    assert 0 < figures["event_p50_us"] <= figures["event_max_us"]


def test_a_watcher_counts_events_by_directory(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    child = start("watch", tmp_path / "a", tmp_path / "b", stdin=subprocess.PIPE)
    assert child.stdout.readline() == "ready\n"
    for i in range(3):
        (tmp_path / "a" / f"f{i}").write_text("x")
    a, b = finish(child)["watched"]
    assert a["close_write"] == 3 and a["modify"] == 3 and a["overflows"] == 0
    assert b["events"] == 0


# ---- gap ----

def test_a_gap_begins_with_the_kill_and_ends_with_a_write(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    victim = subprocess.Popen(["sleep", "60"])
    try:
        figures = generate("gap", "--victim", victim.pid, tmp_path / "a", tmp_path / "b")
    finally:
        victim.kill()
    assert victim.wait() == -signal.SIGKILL
    assert 0 < figures["exit_ms"] <= figures["first_ms"] <= figures["all_ms"]
    assert figures["errors"] == 0


def test_a_gap_needs_somebody_to_kill(tmp_path):
    assert "--victim is missing" in fails_with(2, "gap", tmp_path)


# ---- floor ----

def in_session(session):
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = pathlib.Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(entry)
    return found


def test_the_floor_leaves_no_process_and_no_file(tmp_path):
    child = start("floor", "--seconds", SECONDS, tmp_path, start_new_session=True)
    figures = finish(child)
    assert figures["count"] > 0 and figures["rate"] > 0
    assert in_session(child.pid) == []
    assert list(tmp_path.iterdir()) == []


def test_the_members_of_the_floor_end_with_their_client(tmp_path):
    child = start("floor", "--seconds", 60, tmp_path, start_new_session=True)
    wait_for(lambda: len(in_session(child.pid)) == 4)
    child.kill()
    child.communicate(timeout=20)
    wait_for(lambda: in_session(child.pid) == [])


# ---- usage ----

@pytest.mark.parametrize("arguments, message", [
    ([], "COMMAND: is missing"),
    (["fly", "/tmp"], "no such command"),
    (["write"], "a wrong number of directories"),
    (["write", "--clients", "0", "/tmp"], "--clients: not a whole number"),
    (["write", "--clients", "-1", "/tmp"], "--clients: not a whole number"),
    (["write", "--seconds", "nan", "/tmp"], "--seconds: not a number"),
    (["event", "/tmp"], "a wrong number of directories"),
    (["fill", "--files", "0", "/tmp"], "--files: not a whole number"),
    (["write", "--rate", "x", "/tmp"], "--rate: not a whole number"),
])
def test_a_wrong_call_says_what_is_wrong(arguments, message):
    assert message in fails_with(2, *arguments)


def test_a_directory_that_is_not_there_is_named():
    assert "/nowhere/f0: No such file" in fails_with(1, "write", "/nowhere")


# ---- tools/bench ----

@pytest.fixture
def bench():
    """bench(argument...) starts tools/bench. One that still runs at the end is told to stop: it cleans up."""
    children = []

    def run(*arguments):
        children.append(subprocess.Popen(
            [TOOL, *map(str, arguments)], text=True, env={**os.environ, "KEEL_BUILD": str(BUILD)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return children[-1]

    yield run
    for child in children:
        child.terminate()
        child.communicate(timeout=60)


def left_in(directory):
    mounted = [line for line in open("/proc/self/mountinfo") if str(directory) in line]
    return [*mounted, *directory.iterdir()]


@pytest.fixture
def disk_path():
    """A directory that is not in memory, as /tmp may be."""
    path = pathlib.Path("/var/tmp") / f"keel-test-bench-{os.getpid()}"
    path.mkdir()
    yield path
    path.rmdir()


def test_bench_measures_everything_and_leaves_nothing(tmp_path, disk_path, bench):
    output = tmp_path / "figures.json"
    child = bench("--seconds", SECONDS, "--rounds", 1, "--dir", disk_path, "--json", output)
    text, errors = child.communicate(timeout=170)
    assert child.returncode == 0, errors
    assert left_in(disk_path) == []
    told = json.loads(output.read_text())
    assert len(told["floor"]["runs"]) == 2 and told["floor"]["rate"] > 0
    for name, figures in told["figures"].items():
        assert figures["errors"] == 0, name
        assert figures.get("rate", figures.get("count", figures.get("first_ms"))) > 0, name
    assert len(told["targets"]) == text.count(" met\n") + text.count(" MISSED\n") == 8
    watched = told["figures"]["write 100 watched"]
    assert len(watched["watched"]) == 3
    assert all(counts["modify"] > 0 for counts in watched["watched"])
    cpu = told["figures"]["write 100"]["cpu_a_write_us"]
    assert cpu["keelfs, leader"] > 0 and cpu["keelfs, followers"] > 0


def test_bench_that_is_ended_takes_its_cluster_down(disk_path, bench):
    child = bench("--seconds", 1, "--dir", disk_path)
    wait_for(lambda: re.search(r"write 1$", child.stderr.readline()), seconds=60)
    child.terminate()
    child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM
    assert left_in(disk_path) == []


def test_bench_store_measures_everything_and_leaves_nothing(tmp_path, disk_path, bench):
    output = tmp_path / "figures.json"
    child = bench("store", "--keys", 300, "--revisions", 20_000, "--rounds", 1, "--seconds", SECONDS, "--no-etcd",
                  "--dir", disk_path, "--json", output, "--", "--log-kept", 8 << 20)
    text, errors = child.communicate(timeout=170)
    assert child.returncode == 0, errors
    assert left_in(disk_path) == []
    told = json.loads(output.read_text())
    assert told["etcd"] is None and set(told["keelfs"]["keys"]) == {"300"}
    for figures in (*told["keelfs"]["keys"].values(), told["keelfs"]["revisions"]):
        assert all(value for value in figures.values())
    for windows in told["keelfs"]["tails"].values():
        assert windows["idle"]["count"] > 0 and windows["disturbed"]["count"] > 0
    assert len(told["targets"]) == text.count(" met\n") + text.count(" MISSED\n") == 4


def test_bench_store_that_is_ended_takes_its_node_down(disk_path, bench):
    child = bench("store", "--keys", 100_000, "--no-etcd", "--dir", disk_path)
    wait_for(lambda: re.search(r"100000 keys$", child.stderr.readline()), seconds=60)
    wait_for(lambda: any(disk_path.glob("*/keys/mnt/keys100000")))
    child.terminate()
    child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM
    assert left_in(disk_path) == []


def test_bench_says_what_its_parts_take(bench):
    for words, word in ((["--help"], "tools/bench store"), (["store", "--help"], "--no-etcd")):
        text, _ = bench(*words).communicate(timeout=60)
        assert word in text


def test_bench_does_not_measure_in_memory(bench):
    child = bench("--dir", "/dev/shm")
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "/dev/shm is in memory" in errors
