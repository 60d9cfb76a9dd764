"""The scripts in examples/, as their users run them, on three nodes."""

import os
import re
import signal
import subprocess

import pytest

from keel import ROOT, run, wait_for

ELECTION = os.path.join(ROOT, "examples", "leader-election.sh")
CONFIG_WATCH = os.path.join(ROOT, "examples", "config-watch.sh")


class Script:
    """A script in the background, with its output in a file."""

    def __init__(self, folder, name, command):
        self.name = name
        self.output = folder / f"{name}.out"
        with open(self.output, "wb") as out:
            self.process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd="/",
                start_new_session=True,
            )

    def text(self):
        return self.output.read_text(errors="replace")

    def kill(self):
        """What `kill -9` of the script does: nothing else gets the signal."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def ended(self, bound=20):
        return self.process.wait(bound)


@pytest.fixture
def script(tmp_path):
    """script(name, command…): started in the background, and ended with the test."""
    started = []

    def start(name, *command):
        started.append(Script(tmp_path, name, command))
        return started[-1]

    yield start
    for one in started:
        try:
            os.killpg(one.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        one.process.wait(10)


class Candidate:
    """leader-election.sh on node I, whose command leaves its pid and fence in files and waits."""

    COMMAND = 'echo "$KEEL_FENCE" > "$1.fence"; echo $$ > "$1.pid"; exec sleep 1000'

    def __init__(self, script, folder, cluster, i, ttl, directory="jobs"):
        self.base = folder / f"candidate-{i}"
        self.script = script(
            f"candidate {i}", ELECTION, cluster.path(i, directory), f"candidate {i}", ttl, "--",
            "sh", "-c", self.COMMAND, "sh", self.base,
        )
        self.i = i

    def job(self):
        """The pid of the command once it runs, or None."""
        try:
            return int(self.base.with_suffix(".pid").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def fence(self):
        return int(self.base.with_suffix(".fence").read_text())

    def job_runs(self):
        try:
            with open(f"/proc/{self.job()}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False


@pytest.fixture
def candidate(script, tmp_path):
    return lambda cluster, i, ttl: Candidate(script, tmp_path, cluster, i, ttl)


def leader_of(candidates, bound=30):
    """The one whose command runs."""
    running = wait_for(lambda: [c for c in candidates if c.job_runs()], bound, "a leader")
    assert len(running) == 1
    return running[0]


def test_one_of_three_candidates_leads_and_its_death_hands_over(cluster, candidate):
    # A lease of a minute: who takes over soon does not owe it to the end of the lease.
    cluster.mkdir(1, "jobs")
    candidates = [candidate(cluster, i, 60) for i in cluster.nodes()]
    fences = []
    while candidates:
        leader = leader_of(candidates)
        for i in cluster.nodes():
            assert cluster.read(i, "jobs/leader") == f"candidate {leader.i}\n".encode()
        fences.append(leader.fence())
        assert f"candidate {leader.i}: leader, fence {fences[-1]}\n" in leader.script.text()
        leader.script.kill()
        wait_for(lambda: not leader.job_runs(), 10, "the end of the killed leader's command")
        candidates.remove(leader)
    wait_for(lambda: not cluster.exists(1, "jobs/leader"), 20)
    assert fences == sorted(set(fences))


def test_leadership_ends_with_the_command_and_its_status_is_the_scripts(cluster, candidate, script):
    cluster.mkdir(1, "jobs")
    short = script("short", ELECTION, cluster.path(1, "jobs"), "short", 60, "--", "sh", "-c", "exit 7")
    assert short.ended() == 7
    wait_for(lambda: not cluster.exists(2, "jobs/leader"), 20)
    stopped = candidate(cluster, 2, 60)
    leader_of([stopped])
    stopped.script.process.terminate()
    assert stopped.script.ended() == 143
    assert not stopped.job_runs()
    wait_for(lambda: not cluster.exists(3, "jobs/leader"), 20)


def test_the_loss_of_the_leaders_node_hands_over_when_the_lease_has_expired(cluster, candidate):
    cluster.mkdir(1, "jobs")
    candidates = [candidate(cluster, i, 2) for i in cluster.nodes()]
    first = leader_of(candidates)
    cluster.kill(first.i)
    candidates.remove(first)
    assert leader_of(candidates).fence() > first.fence()
    assert first.script.ended() == 70
    assert not first.job_runs()
    assert "no longer the leader" in first.script.text()


def test_a_leader_that_is_cut_off_ends_its_work(cluster, candidate):
    cluster.mkdir(1, "jobs")
    candidates = [candidate(cluster, i, 2) for i in cluster.nodes()]
    first = leader_of(candidates)
    cluster.cut(first.i)
    candidates.remove(first)
    assert first.script.ended(40) == 70
    assert not first.job_runs()
    assert leader_of(candidates).fence() > first.fence()
    cluster.heal(first.i)


@pytest.fixture
def config(script, tmp_path):
    """config-watch.sh in the background: config(path) gives the script and OUT."""
    def start(path):
        template, out = tmp_path / "web.conf.in", tmp_path / "web.conf"
        template.write_text("listen {{host}}:{{port}};\n# {{unknown}}\n")
        watch = script("config", CONFIG_WATCH, path, template, out, "--",
                       "sh", "-c", 'echo reloaded with "$(cat "$1")"', "sh", out)
        return watch, out

    return start


def lines(count, watch, what):
    return wait_for(lambda: len(re.findall(f"^{what}", watch.text(), re.MULTILINE)) >= count, 20,
                    f"{count} lines '{what}'")


def content_is(out, text):
    wait_for(lambda: out.read_text() == text, 20, f"OUT with {text!r}")


def test_a_configuration_follows_changes_made_on_any_node(shared_cluster, config):
    c = shared_cluster
    c.mkdir(1, "conf")
    c.write(1, "conf/web", "host=a&b\\1\nport=1\n")
    watch, out = config(c.path(2, "conf/web"))
    content_of = "listen {}:{};\n# {{{{unknown}}}}\n".format
    wait_for(lambda: out.exists(), 20)
    content_is(out, content_of("a&b\\1", 1))
    lines(1, watch, "reloaded with listen")

    c.write(1, "conf/web", "host=h\nport=2\n")  # overwritten elsewhere
    content_is(out, content_of("h", 2))
    c.write(3, "conf/.web.tmp", "host=h\nport=3\n")  # replaced elsewhere
    c.rename(3, "conf/.web.tmp", "conf/web")
    content_is(out, content_of("h", 3))
    c.append(1, "conf/web", "# a comment\nport=4\n")  # appended to elsewhere
    content_is(out, content_of("h", 4))
    c.write(2, "conf/web", "host=h\nport=5\n")  # overwritten here
    content_is(out, content_of("h", 5))
    c.unlink(1, "conf/web")  # gone: the last rendering stays
    lines(1, watch, "no ")
    assert out.read_text() == content_of("h", 5)
    c.write(1, "conf/web", "host=h\nport=6\n")
    content_is(out, content_of("h", 6))
    lines(6, watch, "reloaded with listen h:6|reloaded with")
    assert "no value for unknown" in watch.text()
    assert watch.process.poll() is None


def test_changes_of_other_files_render_nothing(shared_cluster, config):
    c = shared_cluster
    c.mkdir(1, "conf-others")
    c.write(1, "conf-others/web", "host=h\nport=1\n")
    watch, out = config(c.path(2, "conf-others/web"))
    lines(1, watch, "reloaded")
    c.write(1, "conf-others/web2", "x")
    c.write(1, "conf-others/we", "x")
    c.write(1, "conf-others/web", "host=h\nport=2\n")
    content_is(out, "listen h:2;\n# {{unknown}}\n")
    lines(2, watch, "reloaded")
    assert len(re.findall("^rendered", watch.text(), re.MULTILINE)) == 2


@pytest.mark.parametrize("command", [
    [ELECTION],
    [ELECTION, "/", "name", "5", "sleep", "1"],
    [ELECTION, "/", "name", "--"],
    [ELECTION, "/", "name", "soon", "--", "true"],
    [ELECTION, "/", "name", "0", "--", "true"],
    [CONFIG_WATCH],
    [CONFIG_WATCH, "/f", "/t", "/o", "--"],
    [CONFIG_WATCH, "/f", "/t", "/o", "reload"],
])
def test_wrong_usage_is_said(command):
    result = run(command, check=False)
    assert result.returncode == 2
    assert "usage:" in result.stderr or "seconds" in result.stderr


@pytest.mark.parametrize("script_path", [ELECTION, CONFIG_WATCH])
def test_help_is_given(script_path):
    assert run([script_path, "--help"]).stdout.startswith("usage: ")
