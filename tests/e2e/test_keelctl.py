"""keelctl through real mounts: what it prints, how it finds its mount, and that it never hangs."""

import json

from keel import KEELCTL, run


def keelctl(*arguments, check=True, **options):
    return run([KEELCTL, *map(str, arguments)], check=check, **options)


def test_status_is_the_file_and_its_json_the_same(shared_cluster):
    c = shared_cluster
    text = keelctl("--mount", c.mnt(2), "status").stdout
    fields = dict(line.split(": ", 1) for line in text.splitlines())
    assert set(fields) == set(c.status(2))
    assert fields["name"] == "n2"
    for name in ["cluster_id", "role", "leader", "term", "commit_index", "applied_index", "revision",
                 "compact_revision", "hash", "quorum", "stale", "db_size", "quota_used"]:
        assert name in fields
    answer = json.loads(keelctl("--mount", c.mnt(2), "--json", "status").stdout)
    assert list(answer) == list(fields)
    assert answer["name"] == "n2"
    assert isinstance(answer["term"], int) and isinstance(answer["hash"], str)


def test_members_names_all_and_the_leader_how_far_they_are(shared_cluster):
    c = shared_cluster
    leader = c.leader()
    answer = json.loads(keelctl("--mount", c.mnt(leader), "--json", "members").stdout)
    assert sorted(m["name"] for m in answer) == ["n1", "n2", "n3"]
    for member in answer:
        assert member["address"].startswith(f"127.0.1.{member['name'][1]}:")
        assert member["voter"] == "yes"
        assert member["match"] > 0
        assert len(member["id"]) == 16
    lines = keelctl("--mount", c.mnt(leader), "members").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [f"name={m['name']}" for m in answer]


def test_log_lists_the_revisions_of_a_key(shared_cluster):
    c = shared_cluster
    c.mkdir(1, "ctl")
    c.write(1, "ctl/f", "one")
    c.write(2, "ctl/f", "three")
    c.unlink(3, "ctl/f")
    answer = json.loads(keelctl("--mount", c.mnt(3), "--json", "log", "ctl/f").stdout)
    assert [(r["type"], r["version"], r["size"]) for r in answer["revisions"]] == [
        ("delete", 0, 0), ("put", 2, 5), ("put", 1, 3)]
    revisions = [r["revision"] for r in answer["revisions"]]
    assert revisions == sorted(revisions, reverse=True)
    assert answer["more"] == 0
    assert c.read(1, f"ctl/f@rev={revisions[1]}") == b"three"
    text = keelctl("--mount", c.mnt(3), "log", c.path(3, "ctl/f")).stdout
    assert text.encode() == c.read(2, "ctl/f@log")


def test_the_mount_is_found_by_option_environment_and_working_directory(shared_cluster):
    c = shared_cluster
    c.mkdir(1, "found")
    c.write(1, "found/f", "x")

    def node(**options):
        return json.loads(keelctl("--json", "status", **options).stdout)["name"]

    assert node(env={"KEEL_MOUNT": c.mnt(3) + "/"}) == "n3"
    assert json.loads(c.run(f"{KEELCTL} --json status", 1).stdout)["name"] == "n1"
    assert json.loads(c.run(f"cd found && {KEELCTL} --json status", 2).stdout)["name"] == "n2"
    for path in ["f", "./f", "../found/f", c.path(2, "found/f")]:
        log = c.run(f"cd found && {KEELCTL} log {path}", 2).stdout
        assert "version=1 type=put size=1" in log
    for path in [".", "../found", "../found/"]:
        assert "version=1 type=put" in c.run(f"cd found && {KEELCTL} log {path}", 2).stdout
    result = keelctl("status", check=False, cwd="/", env={"KEEL_MOUNT": ""})
    assert result.returncode == 2 and "which mount?" in result.stderr


def test_troubles_are_told_with_what_to_do(shared_cluster, tmp_path):
    mount = shared_cluster.mnt(1)
    for arguments, code, text in [
        (["--mount", tmp_path, "status"], 1, "not the mount point of a running keelfs node"),
        (["--mount", mount, "log", "no/such"], 1, "no such key"),
        (["--mount", mount, "log", "/etc/passwd"], 2, "not in the mount"),
        (["--mount", mount, "watch", "f"], 2, "the commands are: status, members, transfer, settings, "),
        (["--mount", mount, "log"], 2, "usage: keelctl log PATH"),
        (["--mount", mount], 2, "which command?"),
        (["--mount", mount, "members", "add", "n4"], 2, "usage: keelctl members"),
        (["--mount", mount, "members", "add", "n4 x", "h:1"], 2, "usage: keelctl members"),
        (["--mount", mount, "members", "remove", "n1", "n2"], 2, "usage: keelctl members"),
        (["--mount", mount, "members", "demote", "n1"], 2, "usage: keelctl members"),
        (["--mount", mount, "members", "apply"], 2, "usage: keelctl members"),
        (["--mount", mount, "status", "--wait"], 2, "usage: keelctl status"),
        (["--mount", mount, "transfer", "n1", "n2"], 2, "usage: keelctl transfer"),
        (["--timeout", "soon", "status"], 2, "--timeout"),
        (["--colour", "status"], 2, "--help"),
    ]:
        result = keelctl(*arguments, check=False)
        assert (result.returncode, result.stdout) == (code, "")
        assert text in result.stderr


def test_help_names_exactly_the_commands_that_there_are():
    text = keelctl("--help").stdout
    for name in ["status", "members [CHANGE]", "settings [CHANGE]", "transfer [NAME]", "compact REV", "defrag", "check", "log PATH"]:
        assert f"\n  {name}" in text
    assert "lease" not in text and "watch" not in text


def test_a_node_that_does_not_answer_or_is_dead_is_no_reason_to_hang(make_cluster):
    c = make_cluster(nodes=1)
    c.kill(1, "STOP")
    result = keelctl("--timeout", "1", "--mount", c.mnt(1), "status", check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert "no answer from the mount within 1 s" in result.stderr
    c.kill(1, "CONT")
    assert "name: n1" in keelctl("--mount", c.mnt(1), "status").stdout
    c.kill(1)
    result = keelctl("--mount", c.mnt(1), "status", check=False)
    assert result.returncode == 1 and "keelctl: " in result.stderr
