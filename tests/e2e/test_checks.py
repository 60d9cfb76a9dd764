"""Members compare their states: one whose state is another one than the majority's stops, and everybody says which."""

import json
import os

import pytest

from keel import ROOT, as_nobody, run, wait_for

DIVERGE = os.path.join(os.environ.get("KEEL_BUILD", os.path.join(ROOT, "build")), "tests", "e2e", "diverge")
STOPS = "its state is another one|state of this node is not that of the others"


def check(c, i):
    """Exit code, and the lines as a dictionary a member."""
    done = c.keelctl(i, "--json", "check", check=False)
    return done.returncode, {line["name"]: line for line in json.loads(done.stdout)}


def states(c, i):
    return {name: line["state"] for name, line in check(c, i)[1].items()}


def diverge(c, i):
    """Node I comes back with a store that has a file of other permissions than everybody else's."""
    c.write(i, "seed", "x")
    c.run("cat @keel/snapshot > /dev/null", i)  # now it is in the store
    c.kill(i, "TERM")
    run([DIVERGE, os.path.join(c.dir, f"n{i}", "data", "store")])
    c.expected_log.append(STOPS)
    c.start(i)


def with_another_state(make_cluster):
    """A cluster, its follower that has another state, and the others."""
    c = make_cluster()
    wait_for(lambda: c.leader() is not None)
    bad = c.followers()[0]
    diverge(c, bad)
    return c, bad, [i for i in c.nodes() if i != bad]


def has_ended(c, i):
    try:
        os.kill(c.pid(i), 0)
        return False
    except (ProcessLookupError, FileNotFoundError, TypeError):
        return True


def alarms(c, i):
    return c.read(i, "@keel/alarms").decode()


@pytest.mark.sanitizer
def test_members_with_the_same_state_say_so(make_cluster):
    c = make_cluster()
    c.run("mkdir d; for i in $(seq 50); do echo $i > d/$i; done; ln -s x l; rm d/7; mv d/8 d/9", 1)
    for i in c.nodes():
        code, members = check(c, i)
        assert code == 0
        assert {line["state"] for line in members.values()} == {"same"}
        assert len({line["hash"] for line in members.values()}) == 1
        assert len({line["index"] for line in members.values()}) == 1
    assert sorted(members) == ["n1", "n2", "n3"]
    assert c.status(1)["alarms"] == "none" and alarms(c, 1) == ""


def test_a_check_comes_after_everything_that_was_written_before(make_cluster):
    c = make_cluster(1)
    before = int(check(c, 1)[1]["n1"]["index"])
    c.write(1, "f", "x")
    written = int(c.status(1)["applied_index"])
    assert before < written < int(check(c, 1)[1]["n1"]["index"])


def test_a_member_that_is_down_is_unknown(make_cluster):
    c = make_cluster()
    c.kill(3)
    done = c.keelctl(1, "check", check=False)
    assert done.returncode == 3
    assert "1 of the members did not answer" in done.stderr
    assert states(c, 2) == {"n1": "same", "n2": "same", "n3": "unknown"}


def test_without_a_quorum_a_check_times_out(make_cluster):
    c = make_cluster(2)
    c.kill(2)
    done = c.keelctl(1, "check", check=False)
    assert done.returncode == 1 and "cut off from the quorum" in done.stderr


def test_only_root_checks(make_cluster):
    c = make_cluster(1)
    assert c.stat(1, "@keel/check").st_mode & 0o7777 == 0o400

    with pytest.raises(PermissionError):
        c.call(1, as_nobody(lambda path: os.open(path, os.O_RDONLY)), "@keel/check")
    with pytest.raises(PermissionError):
        c.write(1, "@keel/check", "1", flags=0)


@pytest.mark.sanitizer
def test_a_follower_with_another_state_stops_and_is_named_everywhere(make_cluster):
    c, bad, good = with_another_state(make_cluster)
    wait_for(lambda: "unknown" not in states(c, good[0]).values() or has_ended(c, bad), 20)
    wait_for(lambda: has_ended(c, bad), 20, "it stops")
    assert f"keelctl members remove n{bad}" in c.log(bad)
    for i in good:
        wait_for(lambda i=i: f"CORRUPT: the check at log index" in alarms(c, i), 20)
        assert f"the state of n{bad} is not that of the others" in alarms(c, i)
        assert c.status(i)["alarms"] == "CORRUPT"
        assert c.members(i)[f"n{bad}"]["state"] == "corrupt"
        c.write(i, f"from{i}", "still here")
    c.tool("start", bad, check=False)  # it stops again, as soon as it hears of it
    wait_for(lambda: has_ended(c, bad), 20)
    c.remove(bad)
    for i in good:
        wait_for(lambda i=i: alarms(c, i) == "", 20, "the alarm is over")
    c.add(bad)
    wait_for(lambda: set(states(c, good[0]).values()) == {"same"}, 20)
    assert len(states(c, good[0])) == 3


def test_a_leader_with_another_state_stops_and_the_others_go_on(make_cluster):
    c, bad, good = with_another_state(make_cluster)
    c.keelctl(good[0], "transfer", f"n{bad}", check=False)
    check_of_good = c.keelctl(good[0], "check", check=False)
    assert check_of_good.returncode in (1, 3)
    wait_for(lambda: has_ended(c, bad), 20, "it stops")
    wait_for(lambda: c.leader() in good, 20, "another one leads")
    for i in good:
        c.write(i, "after", f"{i}")
        wait_for(lambda i=i: f"the state of n{bad} is not" in alarms(c, i), 20)


def test_it_is_found_without_being_asked(make_cluster):
    c, bad, good = with_another_state(make_cluster)

    def written_and_ended():
        c.write(good[0], "f", "x")
        return has_ended(c, bad)

    wait_for(written_and_ended, 40, "it stops", pause=0.2)


def test_without_a_majority_nobody_is_stopped_and_everybody_is_told(make_cluster):
    c = make_cluster(2)
    wait_for(lambda: c.leader() is not None)
    diverge(c, c.followers()[0])
    wait_for(lambda: "differs" in states(c, 1).values(), 20)
    assert c.keelctl(2, "check", check=False).returncode == 1
    for i in c.nodes():
        assert "no majority that agrees" in alarms(c, i)
        assert c.status(i)["alarms"] == "CORRUPT"
        c.write(i, f"from{i}", "x")
        assert not has_ended(c, i)
