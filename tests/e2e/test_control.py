"""The files of /@keel that root writes to or reads: settings, compact, alarms."""

import errno
import json
import os

import pytest

from keel import BINARY, as_nobody, run, wait_for

SETTINGS = ["file_size", "quota", "txn_ops", "history_ms", "history_revisions", "level"]


def settings(c, i):
    lines = c.read(i, "@keel/settings").decode().splitlines()
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}


def tell(c, i, name, text):
    """One write to a file of /@keel."""
    c.write(i, f"@keel/{name}", text, flags=0)


def refused(code, c, i, name, text):
    with pytest.raises(OSError) as caught:
        tell(c, i, name, text)
    assert caught.value.errno == code, caught.value


def test_the_files_of_root_are_closed_to_others(shared_cluster):
    c = shared_cluster
    modes = {"settings": 0o600, "alarms": 0o400, "compact": 0o200, "defrag": 0o200, "snapshot": 0o400, "check": 0o400}
    for name, mode in modes.items():
        st = c.stat(2, f"@keel/{name}")
        assert (st.st_mode & 0o7777, st.st_uid, st.st_gid) == (mode, 0, 0), name
        for flag in os.O_RDONLY, os.O_WRONLY:
            with pytest.raises(PermissionError):
                c.call(2, as_nobody(lambda path, flag=flag: os.open(path, flag)), f"@keel/{name}")
    for name in "alarms", "snapshot", "check":
        with pytest.raises(PermissionError):
            c.call(2, lambda path: os.open(path, os.O_WRONLY), f"@keel/{name}")


def test_settings_are_the_same_on_all_nodes_and_changed_through_any(shared_cluster):
    c = shared_cluster
    before = settings(c, 1)
    assert list(before) == SETTINGS
    assert before["quota"] == 2 << 30 and before["file_size"] == 1044480
    assert before["history_ms"] == 3600000 and before["history_revisions"] == 10000
    changed = {**before, "quota": 64 << 20, "history_ms": 5000}
    tell(c, 3, "settings", f"quota={64 << 20}\nhistory_ms=5000\n")
    assert settings(c, 3) == changed
    for i in 1, 2:
        wait_for(lambda i=i: settings(c, i) == changed)
    assert c.call(3, lambda path: (lambda s: s.f_blocks * s.f_frsize)(os.statvfs(path))) == 64 << 20
    tell(c, 1, "settings", f"quota={2 << 30} history_ms=3600000")
    wait_for(lambda: settings(c, 2) == before)


def test_a_wrong_setting_changes_nothing(shared_cluster):
    c = shared_cluster
    before = settings(c, 1)
    for text in ["file_size=0", "file_size=1044481", "quota=1000", "quota=99999999999999", "history_ms=0", "history_revisions=0",
                 "quota", "nonsense=1", "level=2", "txn_ops=5", "", "history_ms=7000\nquota=1"]:
        refused(errno.EINVAL, c, 1, "settings", text or "\n")
    assert settings(c, 1) == before


def test_the_file_size_is_a_setting_of_the_cluster(shared_cluster, d):
    c = shared_cluster
    c.write(1, f"{d}/f", b"x" * 2000)
    try:
        c.keelctl(2, "settings", "file_size=1K")
        with pytest.raises(OSError) as caught:
            c.write(2, f"{d}/f", b"y" * 1025)
        assert caught.value.errno == errno.EFBIG
        assert c.read(3, f"{d}/f") == b"x" * 2000
        c.write(2, f"{d}/f", b"z" * 1024)
    finally:
        c.keelctl(2, "settings", "file_size=1020K")
    c.write(2, f"{d}/f", b"y" * 1025)


def test_keelctl_takes_sizes_and_times(shared_cluster):
    c = shared_cluster
    answer = json.loads(c.keelctl(1, "--json", "settings").stdout)
    assert answer == settings(c, 1)
    c.keelctl(1, "settings", "quota=512M", "history_ms=2h", "history_revisions=500")
    try:
        assert "quota: 536870912\n" in c.keelctl(1, "settings").stdout
        now = settings(c, 1)
        assert (now["history_ms"], now["history_revisions"]) == (7200000, 500)
    finally:
        c.keelctl(1, "settings", "quota=2G", "history_ms=1h", "history_revisions=10000")
    for code, arguments, said in [
            (2, ["quota=2X"], "a size"), (2, ["history_ms=5"], "a time"), (2, ["history_revisions=2K"], "a number"),
            (2, ["speed=5"], "no such setting"), (2, ["quota"], "no such setting"), (1, ["quota=4K"], "out of range"),
            (1, ["quota=1G", "quota=2G"], "named twice")]:
        result = c.keelctl(1, "settings", *arguments, check=False)
        assert (result.returncode, said in result.stderr) == (code, True), result.stderr


def test_compact_answers_with_an_errno(shared_cluster, d):
    c = shared_cluster
    c.write(1, f"{d}/f", "1")
    now = int(c.status(1)["revision"])
    for text in "", "x", "-1", "1 2", str(now + 1000):
        refused(errno.EINVAL, c, 1, "compact", text or "\n")
    assert c.read(1, "@keel/compact") == b""
    tell(c, 2, "compact", f"{now}\n")
    for i in c.nodes():
        wait_for(lambda i=i: int(c.status(i)["compact_revision"]) == now)
    refused(errno.ESTALE, c, 3, "compact", str(now))
    refused(errno.ESTALE, c, 3, "compact", str(now - 1))
    for arguments, code, said in [(["0"], 1, "already"), ([str(now + 1000)], 1, "no such revision"), (["x"], 2, "a revision")]:
        result = c.keelctl(1, "compact", *arguments, check=False)
        assert (result.returncode, said in result.stderr) == (code, True), result.stderr
    c.write(1, f"{d}/f", "2")
    c.keelctl(1, "compact", c.status(1)["revision"])
    assert int(c.status(1)["compact_revision"]) > now


def test_there_is_no_alarm_in_a_store_with_room(shared_cluster):
    c = shared_cluster
    assert c.read(1, "@keel/alarms") == b""
    assert c.status(1)["alarms"] == "none"


def test_first_values_of_settings_are_options(make_cluster):
    c = make_cluster(nodes=1, flags=["--quota", str(9 << 20), "--file-size", "5000", "--history", "90s", "--history-revisions", "77"])
    c.write(1, "f", "x")  # behind the first entry, which has them: @keel says what is applied, and that may be nothing yet
    assert settings(c, 1) == {"file_size": 5000, "quota": 9 << 20, "txn_ops": 4096, "history_ms": 90000, "history_revisions": 77,
                              "level": 1}
    for option, value in ("history", "90"), ("history", "0s"), ("history", "x"), ("history-revisions", "0"):
        result = run([BINARY, f"--{option}", value], check=False)
        assert result.returncode == 2 and f"--{option}" in result.stderr, result.stderr
