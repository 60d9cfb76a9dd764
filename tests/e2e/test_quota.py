"""The store's quota: what still works when it is reached, what gives way first, and how it is told."""

import errno
import os
import re

import pytest

from keel import wait_for

QUOTA = 6 << 20
SIZE = 400_000
FLAGS = ["--quota", str(QUOTA)]

pytestmark = pytest.mark.cluster(flags=FLAGS)


def full(function, *arguments):
    with pytest.raises(OSError) as caught:
        function(*arguments)
    assert caught.value.errno == errno.ENOSPC, caught.value


def content(n, size=SIZE):
    return os.urandom(16) + bytes([n % 256]) * (size - 16)


def fill(c, i=1):
    """Files until there is no more room; their contents by name."""
    files = {}
    for n in range(1000):
        name, data = f"f{n}", content(n)
        try:
            c.write(i, name, data)
        except OSError as error:
            assert error.errno == errno.ENOSPC
            assert n >= QUOTA // SIZE - 2
            # A file that was created and not written may be there, empty.
            if c.exists(i, name):
                assert c.read(i, name) == b""
                c.unlink(i, name)
            return files
        files[name] = data
    raise AssertionError("no quota at all")


def alarms(c):
    return {c.status(i)["alarms"] for i in c.nodes()}


@pytest.mark.sanitizer
def test_growth_is_refused_and_the_rest_works(cluster):
    c = cluster
    files = fill(c)
    a, b, gone = "f0", "f1", "f2"
    full(c.write, 2, "more", content(1))
    full(c.append, 3, a, content(2))
    full(c.call, 2, lambda path: os.truncate(path, SIZE * 2), a)
    for name, data in files.items():
        assert c.read(3, name) == data
    # The same size, smaller, attributes, names
    files[a] = content(77)
    c.write(2, a, files[a])
    c.write(3, b, "small")
    files[b] = b"small"
    c.call(1, lambda path: os.chmod(path, 0o600), a)
    c.rename(2, a, "renamed")
    c.unlink(1, gone)
    files["renamed"] = files.pop(a)
    del files[gone]
    for i in c.nodes():
        assert {name: c.read(i, name) for name in files} == files
        assert c.stat(i, "renamed").st_mode & 0o777 == 0o600
    # and there is room for what was deleted
    files["again"] = content(5)
    c.write(2, "again", files["again"])
    assert c.read(1, "again") == files["again"]


@pytest.mark.sanitizer
def test_history_gives_way_first(cluster):
    c = cluster
    last = None
    for n in range(60):  # 24 MB through 6
        last = content(n)
        c.write(n % 3 + 1, "f", last)
        c.write(n % 3 + 1, f"g{n % 2}", "small")
    assert c.read(1, "f") == last
    assert alarms(c) == {"none"}
    for i in c.nodes():
        wait_for(lambda i=i: c.status(i)["applied_index"] == c.status(c.leader())["applied_index"])
        assert 0 < int(c.status(i)["compact_revision"]) < int(c.status(i)["revision"])
        assert int(c.status(i)["quota_used"]) <= QUOTA
    assert len(c.read(2, "f@log").splitlines()) >= 5  # no more than has to


def test_the_alarm_comes_and_goes(make_cluster):
    c = make_cluster(flags=[*FLAGS, "--history", "1s", "--history-revisions", "5"])
    assert alarms(c) == {"none"}
    files = fill(c)
    for i in c.nodes():
        wait_for(lambda i=i: c.status(i)["alarms"] == "NOSPACE")
        said = c.read(i, "@keel/alarms").decode()
        assert re.fullmatch(r"NOSPACE: \d+ of 6291456 bytes of the quota are used: .*\n", said)
    for name in list(files)[:6]:
        c.unlink(2, name)
    for n in range(6):  # history that is kept at least
        c.write(1, "little", f"{n}")
    for i in c.nodes():
        wait_for(lambda i=i: c.status(i)["alarms"] == "none", what=c.status(i))
        assert c.read(i, "@keel/alarms") == b""
    c.write(3, "more", content(3))


def test_a_larger_quota_ends_the_alarm(cluster):
    c = cluster
    fill(c)
    wait_for(lambda: alarms(c) == {"NOSPACE"})
    c.keelctl(2, "settings", "quota=12M")
    wait_for(lambda: alarms(c) == {"none"})
    c.write(3, "more", content(3))
    c.keelctl(2, "settings", "quota=2M")  # less than there is: nothing is lost, nothing grows
    full(c.write, 1, "even more", content(4))
    assert c.read(1, "more") == c.read(2, "more")


def test_the_alarm_is_there_after_a_restart(cluster):
    c = cluster
    fill(c)
    wait_for(lambda: alarms(c) == {"NOSPACE"})
    for i in c.nodes():
        c.kill(i)
    for i in c.nodes():
        c.start(i)
    wait_for(lambda: c.leader())
    assert alarms(c) == {"NOSPACE"}
    full(c.write, 1, "more", content(1))


def test_df_shows_the_quota(cluster):
    c = cluster
    for i in c.nodes():
        st = c.call(i, os.statvfs)
        assert st.f_blocks * st.f_frsize == QUOTA
    before = c.call(2, os.statvfs)
    c.write(1, "f", content(1))
    c.read(2, "f")
    after = c.call(2, os.statvfs)
    used = int(c.status(2)["quota_used"])
    assert (after.f_blocks - after.f_bfree) * after.f_frsize == (used + 4095) // 4096 * 4096
    assert (before.f_bfree - after.f_bfree) * after.f_frsize in range(SIZE - 4096, SIZE + 10_000)
    assert after.f_files - after.f_ffree == int(c.status(2)["keys"])
    said = c.run("df --output=size,used -B1 . | tail -1", 1).stdout.split()
    assert int(said[0]) == QUOTA and int(said[1]) >= SIZE
    fill(c, 3)
    full_now = c.call(3, os.statvfs)
    assert full_now.f_bfree * full_now.f_frsize < SIZE
    # Programs that look whether a file fits
    assert c.run("cp f copy", 1, check=False).returncode != 0
