"""Wrong options, wrong places, wrong data, wrong peers: each is refused with a message that says what and what to do, and changes nothing."""

import ctypes
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import time

import pytest

import keel
from keel import Hung, mounts_below, processes_of_sessions, run, wait_for

BINARY = os.environ.get("KEELFS", os.path.join(keel.ROOT, "build", "keelfs"))
PORT = 18000 + os.getpid() % 1900


class Place:
    """A directory with what one node needs, and what was started there."""

    def __init__(self, directory):
        self.dir = str(directory)
        self.data, self.mnt = self.path("data"), self.path("mnt")
        os.mkdir(self.mnt)
        self.members = f"n1=127.0.0.1:{PORT}"
        self.nodes = []

    def path(self, name):
        return os.path.join(self.dir, name)

    def text(self, name, content):
        with open(self.path(name), "w") as file:
            file.write(content)
        return self.path(name)

    def good(self, **other):
        """The options with which one node starts as a cluster of its own; other=None leaves one out."""
        options = {"name": "n1", "data_dir": self.data, "initial_cluster": self.members, "bootstrap": True}
        options.update(other)
        words = []
        for name, value in options.items():
            if value is not None:
                words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
        return words

    def refused(self, arguments, prefix=(), timeout=20):
        """Runs keelfs, which has to end by itself, with nothing mounted and nobody running. Returns code and output."""
        result = run([*prefix, BINARY, *map(str, arguments)], timeout, check=False, cwd=self.dir)
        assert mounts_below(self.mnt) == []
        return result

    def start(self, arguments, cwd=None):
        """A node that has to come up."""
        log = open(self.path(f"log{len(self.nodes)}"), "w+")
        node = subprocess.Popen(
            [BINARY, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            cwd=cwd or self.dir, start_new_session=True)
        node.log = log
        self.nodes.append(node)
        wait_for(lambda: " mounted on " in self.log(node) or node.poll() is not None)
        assert node.poll() is None, self.log(node)
        return node

    def log(self, node):
        node.log.seek(0)
        return node.log.read()

    def stop(self, node, sign=signal.SIGTERM):
        node.send_signal(sign)
        return node.wait(20)

    def clean(self):
        for node in self.nodes:
            if node.poll() is None:
                node.terminate()
                try:
                    node.wait(10)
                except subprocess.TimeoutExpired:
                    node.kill()
        for point in reversed(mounts_below(self.dir)):
            subprocess.run(["umount", "-l", point], check=False)
        wait_for(lambda: not processes_of_sessions({node.pid for node in self.nodes}), 10)


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    yield place
    left = mounts_below(place.mnt) if not any(n.poll() is None for n in place.nodes) else []
    place.clean()
    assert not [p for p in left if p != place.mnt]


# ---- options ----

# What, arguments (a function of the place), exit code, and what the message must say, each in turn.
OPTIONS = [
    ("an unknown option", lambda p: [*p.good(), "--colour", p.mnt], 2, ["colour", "--help"]),
    ("an unknown letter", lambda p: [*p.good(), "-x", p.mnt], 2, ["'x'", "--help"]),
    ("an option without its value", lambda p: [p.mnt, "--name"], 2, ["name", "--help"]),
    ("a flag with a value", lambda p: [*p.good(), "--no-lease-reads=7", p.mnt], 2, ["no-lease-reads"]),
    ("no name", lambda p: [*p.good(name=None), p.mnt], 2, ["--name is missing", "--help"]),
    ("no data directory", lambda p: [*p.good(data_dir=None), p.mnt], 2, ["--data-dir is missing", "--help"]),
    ("no mount point", lambda p: p.good(), 2, ["the mount point is missing", "--help"]),
    ("nothing at all", lambda p: [], 2, ["is missing", "--help"]),
    ("two mount points", lambda p: [*p.good(), p.mnt, "/other"], 2, ["one mount point", "/other"]),
    ("an empty name", lambda p: [*p.good(name=""), p.mnt], 2, ["--name", "letters"]),
    ("a name with a slash", lambda p: [*p.good(name="a/b"), p.mnt], 2, ["--name", "letters"]),
    ("a name that is too long", lambda p: [*p.good(name="n" * 64), p.mnt], 2, ["--name", "63"]),
    ("a token with a space", lambda p: [*p.good(cluster_token="a b"), p.mnt], 2, ["--cluster-token", "letters"]),
    ("a timeout in words", lambda p: [*p.good(request_timeout="soon"), p.mnt], 2, ["--request-timeout", "'soon'", "100"]),
    ("a timeout with a unit", lambda p: [*p.good(request_timeout="5s"), p.mnt], 2, ["--request-timeout", "'5s'"]),
    ("a negative timeout", lambda p: [*p.good(request_timeout="-5000"), p.mnt], 2, ["--request-timeout", "'-5000'"]),
    ("a negative timeout behind a space", lambda p: [*p.good(request_timeout=" -5000"), p.mnt], 2, ["--request-timeout"]),
    ("an empty number", lambda p: [*p.good(request_timeout=""), p.mnt], 2, ["--request-timeout", "''"]),
    ("a timeout that is too small", lambda p: [*p.good(request_timeout=1), p.mnt], 2, ["--request-timeout", "from 100"]),
    ("a number over 64 bits", lambda p: [*p.good(quota="99999999999999999999"), p.mnt], 2, ["--quota"]),
    ("a heartbeat of zero", lambda p: [*p.good(heartbeat_interval=0), p.mnt], 2, ["--heartbeat-interval"]),
    ("an election timeout below the heartbeat", lambda p: [*p.good(election_timeout=30), p.mnt], 2, ["--election-timeout", "heartbeat"]),
    ("a lease longer than the election timeout", lambda p: [*p.good(leader_lease=700), p.mnt], 2, ["longer than the leader lease"]),
    ("a file size over the maximum", lambda p: [*p.good(file_size=2000000), p.mnt], 2, ["--file-size", "1044480"]),
    ("a file size of nothing", lambda p: [*p.good(file_size=0), p.mnt], 2, ["--file-size", "from 4096"]),
    ("a small quota", lambda p: [*p.good(quota=5), p.mnt], 2, ["--quota", "1048576"]),
    ("an unknown log level", lambda p: [*p.good(log_level="loud"), p.mnt], 2, ["--log-level", "'loud'", "debug"]),
    ("an unknown mount option", lambda p: [*p.good(), "-o", "frobnicate", p.mnt], 2, ["frobnicate"]),
    ("an unknown way of reading", lambda p: [*p.good(), "-o", "read=remote", p.mnt], 2, ["read=remote"]),
    ("a member without an address", lambda p: [*p.good(initial_cluster="n1"), p.mnt], 2, ["--initial-cluster", "'n1", "NAME=HOST:PORT"]),
    ("a member without a port", lambda p: [*p.good(initial_cluster="n1=127.0.0.1"), p.mnt], 2, ["--initial-cluster", "NAME=HOST:PORT"]),
    ("a member with a bad port", lambda p: [*p.good(initial_cluster="n1=127.0.0.1:99999"), p.mnt], 2, ["--initial-cluster", "NAME=HOST:PORT"]),
    ("a member with a port in words", lambda p: [*p.good(initial_cluster="n1=127.0.0.1:http"), p.mnt], 2, ["--initial-cluster", "NAME=HOST:PORT"]),
    ("a member without a host", lambda p: [*p.good(initial_cluster="n1=:7000"), p.mnt], 2, ["--initial-cluster", "NAME=HOST:PORT"]),
    ("an empty list of members", lambda p: [*p.good(initial_cluster=""), p.mnt], 2, ["--initial-cluster", "n1"]),
    ("a list without this node", lambda p: [*p.good(initial_cluster="n2=127.0.0.1:7000"), p.mnt], 2, ["does not name this node (n1)", "add n1=HOST:PORT"]),
    ("a name twice", lambda p: [*p.good(initial_cluster="n1=127.0.0.1:7000,n1=127.0.0.1:7001"), p.mnt], 2, ["n1 and n1 have the same name or address"]),
    ("an address twice", lambda p: [*p.good(initial_cluster="n1=127.0.0.1:7000,n2=127.0.0.1:7000"), p.mnt], 2, ["n1 and n2 have the same name or address"]),
    ("too many members", lambda p: [*p.good(initial_cluster=",".join(f"n{i}=127.0.0.1:{7000 + i}" for i in range(1, 99))), p.mnt], 2, ["--initial-cluster", "at most"]),
    ("a bootstrap without members", lambda p: [*p.good(initial_cluster=None), p.mnt], 2, ["--bootstrap needs --initial-cluster"]),
    ("a bad address to listen on", lambda p: [*p.good(listen_peer="nowhere"), p.mnt], 2, ["--listen-peer: 'nowhere' is not HOST:PORT"]),
    ("all addresses without --insecure-peers", lambda p: [*p.good(listen_peer=f"0.0.0.0:{PORT}"), p.mnt], 2, ["without TLS", "--insecure-peers"]),
    ("a public member address without --insecure-peers", lambda p: [*p.good(initial_cluster=f"n1=192.0.2.1:{PORT}"), p.mnt], 2, ["without TLS", "--insecure-peers"]),
    ("a configuration file that is not there", lambda p: ["--config", p.path("none"), p.mnt], 2, ["cannot read", "/none", "No such file"]),
    ("an unknown name in the configuration", lambda p: ["--config", p.text("c", "name = n1\ncolour = red\n"), p.mnt], 2, ["colour", "line 2"]),
    ("a bad number in the configuration", lambda p: ["--config", p.text("c", "request-timeout = x\n"), p.mnt], 2, ["request-timeout", "'x'", "line 1"]),
    ("a bad yes or no in the configuration", lambda p: ["--config", p.text("c", "bootstrap = perhaps\n"), p.mnt], 2, ["bootstrap", "'perhaps'", "line 1"]),
    ("a line that is no option", lambda p: ["--config", p.text("c", "name = n1\n\nwhat is this\n"), p.mnt], 2, ["line 3"]),
    ("a configuration that names another", lambda p: ["--config", p.text("c", "config = d\n"), p.mnt], 2, ["config", "line 1"]),
    ("a configuration that is a directory", lambda p: ["--config", p.dir, p.mnt], 2, ["cannot read", "directory"]),
]


@pytest.mark.parametrize("arguments, code, words", [row[1:] for row in OPTIONS], ids=[row[0] for row in OPTIONS])
def test_wrong_options_are_refused_with_what_to_do(place, arguments, code, words):
    result = place.refused(arguments(place))
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    last = result.stderr.strip().splitlines()[-2:]
    for word in words:
        assert word in "\n".join(last), f"{word!r} is not in {result.stderr!r}"
    # Nothing was begun that a correct second try would stumble over (the mount's options are no part of what is kept).
    assert "mount options" in last[-1] or not os.path.exists(os.path.join(place.data, "identity"))


def test_a_wrong_option_leaves_a_correct_second_try_possible(place):
    for wrong in ({"initial_cluster": "n2=127.0.0.1:7000"}, {"listen_peer": "0.0.0.0:7000"}, {"listen_peer": "nowhere"}):
        assert place.refused([*place.good(**wrong), place.mnt]).returncode == 2
    node = place.start([*place.good(), place.mnt])
    assert place.stop(node) == 0


def test_help_and_version_go_to_standard_output(place):
    result = run([BINARY, "--help"])
    assert result.stderr == ""
    for word in ["usage: keelfs", "--name", "--data-dir", "--initial-cluster", "--bootstrap", "Exit codes"]:
        assert word in result.stdout
    assert re.fullmatch(r"keelfs \d+\.\d+\.\d+\n", run([BINARY, "--version"]).stdout)


def test_every_option_in_the_help_is_accepted_in_the_configuration_file_too(place):
    names = re.findall(r"^  --([a-z-]+)", run([BINARY, "--help"]).stdout, re.M)
    assert len(names) > 15
    for name in sorted(set(names) - {"config", "version", "help"}):
        result = place.refused(["--config", place.text("c", f"{name} = !\n")])
        assert result.returncode == 2
        assert "unknown option" not in result.stderr, name


def test_the_configuration_file_is_honoured_and_the_command_line_wins(place):
    config = place.text(
        "config",
        f"# a comment\nname = n1\ndata-dir = {place.data}\ninitial-cluster = {place.members}\nbootstrap = yes\n"
        f"mount-point = {place.mnt}\nfile-size = 8192\nmount-options = read=local,list_xattr\ncluster-token = filed\n"
        "no-lease-reads = no\n")
    node = place.start(["--config", config, "--file-size", "4096"])
    path = os.path.join(place.mnt, "f")
    wait_for(lambda: run(f"head -c 4096 /dev/zero > {path}", check=False).returncode == 0)
    result = run(f"head -c 4097 /dev/zero > {path}", check=False)
    assert result.returncode != 0, "the file's limit came from the configuration file, not the command line"
    assert run(["stat", "-c", "%s", path]).stdout == "4096\n"
    assert "user.keel.revision" in run(["getfattr", path]).stdout
    assert "keelfs:filed/n1" in open("/proc/self/mountinfo").read()
    assert place.stop(node) == 0


# ---- places ----

def test_an_empty_or_missing_data_directory_needs_bootstrap(place):
    options = [*place.good(bootstrap=None), place.mnt]
    result = place.refused(options)
    assert result.returncode == 1 and "--bootstrap" in result.stderr and place.data in result.stderr
    assert not os.path.exists(place.data)
    os.mkdir(place.data)
    result = place.refused(options)
    assert result.returncode == 2 and "is empty" in result.stderr and "--bootstrap" in result.stderr
    assert "its data are lost" in result.stderr
    assert os.listdir(place.data) == []


def test_a_data_directory_that_cannot_be_created_is_told(place):
    result = place.refused([*place.good(data_dir=place.path("no/such/data")), place.mnt])
    assert result.returncode == 1
    assert place.path("no/such/data") in result.stderr and "No such file or directory" in result.stderr
    result = place.refused([*place.good(data_dir=place.text("file", "")), place.mnt])
    assert result.returncode == 1 and place.path("file") in result.stderr and "Not a directory" in result.stderr


def test_an_unwritable_data_directory_is_refused(place):
    os.mkdir(place.data)
    run(["mount", "--bind", place.data, place.data])
    try:
        run(["mount", "-o", "remount,bind,ro", place.data])
        result = place.refused([*place.good(), place.mnt])
        assert result.returncode == 1
        assert f"the data directory {place.data} is not writable" in result.stderr
    finally:
        run(["umount", place.data])
    assert os.listdir(place.data) == []


def test_a_user_without_rights_is_told_what_is_not_his(place):
    # pytest's directories are root's alone: somebody else needs a way to his own.
    import tempfile

    with tempfile.TemporaryDirectory(prefix="keel-user-", dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        os.mkdir(os.path.join(directory, "data"), 0o755)
        os.mkdir(os.path.join(directory, "mnt"))
        binary = shutil.copy(BINARY, os.path.join(directory, "keelfs"))
        os.chmod(binary, 0o755)
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        arguments = [*place.good(data_dir=os.path.join(directory, "data")), os.path.join(directory, "mnt")]
        result = run([*user, binary, *arguments], check=False)
        assert result.returncode == 1, result.stderr
        assert "is not writable: Permission denied" in result.stderr
        os.chown(os.path.join(directory, "data"), 65534, 65534)
        result = run([*user, binary, *arguments], check=False)
        assert result.returncode == 1, result.stderr
        assert "cannot mount" in result.stderr and "root" in result.stderr
        assert mounts_below(directory) == []


def test_a_mount_point_that_is_missing_or_a_file_is_refused(place):
    result = place.refused([*place.good(), place.path("none")])
    assert result.returncode == 1
    assert place.path("none") in result.stderr and "mkdir" in result.stderr
    result = place.refused([*place.good(), place.text("file", "kept")])
    assert result.returncode == 1
    assert place.path("file") in result.stderr and "not a directory" in result.stderr
    assert open(place.path("file")).read() == "kept"
    node = place.start([*place.good(), place.mnt])  # and nothing stands in the way of the right one
    assert place.stop(node) == 0


def test_a_mount_point_with_another_keelfs_on_it_is_refused(place):
    node = place.start([*place.good(), place.mnt])
    wait_for(lambda: run(f"echo kept > {place.mnt}/f", check=False).returncode == 0)
    result = run([BINARY, *place.good(name="n2", data_dir=place.path("data2"),
                                      initial_cluster=f"n2=127.0.0.1:{PORT + 1}"), place.mnt], check=False)
    assert result.returncode == 1
    assert "another keelfs is mounted on" in result.stderr and "unmount it first" in result.stderr
    assert run(["cat", f"{place.mnt}/f"]).stdout == "kept\n"
    assert mounts_below(place.dir) == [place.mnt]
    assert place.stop(node) == 0


def test_a_data_directory_below_the_mount_point_is_refused(place):
    for data in [os.path.join(place.mnt, "data"), place.mnt]:
        result = place.refused([*place.good(data_dir=data), place.mnt])
        assert result.returncode == 2
        assert "below the mount point" in result.stderr and "elsewhere" in result.stderr
    # The same by another name.
    os.symlink(place.mnt, place.path("link"))
    result = place.refused([*place.good(data_dir=os.path.join(place.path("link"), "data")), place.mnt])
    assert result.returncode == 2 and "below the mount point" in result.stderr
    result = place.refused([*place.good(), "--wal-dir", os.path.join(place.mnt, "wal"), place.mnt])
    assert result.returncode == 2 and "below the mount point" in result.stderr


def test_a_data_directory_on_a_keelfs_mount_is_refused(place):
    node = place.start([*place.good(), place.mnt])
    wait_for(lambda: run(f"mkdir {place.mnt}/d", check=False).returncode == 0)
    os.mkdir(place.path("mnt2"))
    for where in ({"data_dir": f"{place.mnt}/d"}, {"data_dir": place.path("data2"), "wal_dir": f"{place.mnt}/d"}):
        result = run([BINARY, *place.good(**{"name": "n2", "initial_cluster": f"n2=127.0.0.1:{PORT + 1}", **where}),
                      place.path("mnt2")], check=False)
        assert result.returncode == 2, result.stderr
        assert "lies on a keelfs mount" in result.stderr and "local disk" in result.stderr
    assert mounts_below(place.dir) == [place.mnt]
    assert run(["ls", f"{place.mnt}/d"]).stdout == ""
    assert place.stop(node) == 0


def test_a_program_or_a_log_on_a_keelfs_mount_is_refused(place):
    node = place.start([*place.good(), place.mnt])
    wait_for(lambda: run(f"cp {BINARY} {place.mnt}/keelfs", check=False).returncode == 0)
    os.mkdir(place.path("mnt2"))
    second = [*place.good(name="n2", data_dir=place.path("data2"), initial_cluster=f"n2=127.0.0.1:{PORT + 1}"),
              place.path("mnt2")]
    result = run([f"{place.mnt}/keelfs", *second], check=False)
    assert result.returncode == 2 and "program lies on a keelfs mount" in result.stderr
    result = run(" ".join([BINARY, *second, f"2>{place.mnt}/log"]), check=False)
    assert result.returncode == 2
    assert "standard error) goes to a file on a keelfs mount" in run(["cat", f"{place.mnt}/log"]).stdout
    assert not os.path.exists(os.path.join(place.path("data2"), "identity"))
    assert place.stop(node) == 0


def test_a_port_that_is_taken_is_told(place):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", PORT))
        taken.listen()
        result = place.refused([*place.good(), place.mnt])
        assert result.returncode == 1
        assert f"127.0.0.1:{PORT}" in result.stderr and "in use" in result.stderr
    node = place.start([*place.good(), place.mnt])
    assert place.stop(node) == 0


def test_an_address_that_is_not_this_machines_is_told(place):
    result = place.refused([*place.good(listen_peer=f"192.0.2.77:{PORT}"), "--insecure-peers", place.mnt])
    assert result.returncode == 2
    assert f"cannot listen on 192.0.2.77:{PORT}" in result.stderr and "not an address of this host" in result.stderr


def test_a_second_node_on_the_same_data_directory_is_refused(place):
    node = place.start([*place.good(), place.mnt])
    os.mkdir(place.path("mnt2"))
    result = run([BINARY, *place.good(), place.path("mnt2")], check=False)
    assert result.returncode == 1
    assert f"the data directory {place.data} is in use" in result.stderr and "stop that one first" in result.stderr
    assert mounts_below(place.dir) == [place.mnt]
    assert place.stop(node) == 0


# ---- data that belong to somebody else ----

def tree_of(directory):
    """Everything in a directory, to see that nothing was changed."""
    found = {}
    for where, _, files in os.walk(directory):
        for name in files:
            path = os.path.join(where, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, directory)] = file.read()
    return found


def test_data_of_another_node_or_cluster_are_refused_unchanged(place):
    node = place.start([*place.good(), place.mnt])
    assert place.stop(node) == 0
    before = tree_of(place.data)
    result = place.refused([*place.good(name="n2"), place.mnt])
    assert result.returncode == 2
    assert "belongs to node n1, not to n2" in result.stderr and "correct --name or --data-dir" in result.stderr
    result = place.refused([*place.good(cluster_token="other"), place.mnt])
    assert result.returncode == 2
    assert "belongs to the cluster 'keelfs', not to 'other'" in result.stderr
    assert "correct --cluster-token or --data-dir" in result.stderr
    assert tree_of(place.data) == before
    node = place.start([*place.good(initial_cluster=f"n1=127.0.0.1:{PORT},n2=127.0.0.1:1"), place.mnt])
    log = place.log(node)
    assert "--initial-cluster differs from the one at bootstrap and is ignored" in log
    assert "--bootstrap is ignored" in log
    assert place.stop(node) == 0


def test_a_log_of_another_node_is_refused(place):
    node = place.start([*place.good(), place.mnt])
    assert place.stop(node) == 0
    other = [*place.good(name="n2", data_dir=place.path("data2"), initial_cluster=f"n2=127.0.0.1:{PORT}"), place.mnt]
    node = place.start(other)
    assert place.stop(node) == 0
    shutil.rmtree(os.path.join(place.path("data2"), "wal"))
    shutil.copytree(os.path.join(place.data, "wal"), os.path.join(place.path("data2"), "wal"))
    result = place.refused(other)
    assert result.returncode == 2
    assert "log: " in result.stderr and ".wal" in result.stderr and "another" in result.stderr


@pytest.mark.parametrize("what", ["wal", "identity"])
def test_a_data_directory_of_which_a_part_is_gone_is_refused(place, what):
    node = place.start([*place.good(), place.mnt])
    wait_for(lambda: run(f"echo x > {place.mnt}/f", check=False).returncode == 0)
    assert place.stop(node) == 0
    gone = os.path.join(place.data, what)
    os.rename(gone, place.path("gone"))
    for _ in range(2):  # the first start must not make a log that the second one takes for its own
        result = place.refused([*place.good(bootstrap=None), place.mnt])
        assert result.returncode in (1, 2), result.stderr
    if what == "wal":
        assert "the log is gone from the data directory" in result.stderr and "Restore it" in result.stderr
    else:
        assert "--bootstrap" in result.stderr and "its data are lost" in result.stderr
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(place.path("gone"), gone)
    node = place.start([*place.good(), place.mnt])
    assert wait_for(lambda: run(["cat", f"{place.mnt}/f"], check=False).stdout) == "x\n"
    assert place.stop(node) == 0


def test_a_store_that_is_gone_is_built_again_from_the_log(place):
    """The store is a checkpoint; this version's log begins with the first entry."""
    node = place.start([*place.good(), place.mnt])
    wait_for(lambda: run(f"echo x > {place.mnt}/f", check=False).returncode == 0)
    assert place.stop(node) == 0
    shutil.rmtree(os.path.join(place.data, "store"))
    node = place.start([*place.good(), place.mnt])
    assert wait_for(lambda: run(["cat", f"{place.mnt}/f"], check=False).stdout) == "x\n"
    assert run(["getfattr", "--only-values", "-n", "user.keel.version", f"{place.mnt}/f"]).stdout == "1"
    assert place.stop(node) == 0


def with_checksum(lines):
    xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    xxh3.restype = ctypes.c_uint64
    return lines + f"checksum={xxh3(lines.encode(), ctypes.c_size_t(len(lines))):016x}\n"


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "version", "newer"])
def test_a_damaged_identity_is_refused(place, damage):
    node = place.start([*place.good(), place.mnt])
    assert place.stop(node) == 0
    path = os.path.join(place.data, "identity")
    text = open(path).read()
    with open(path, "w") as file:
        file.write({"cut": text[:40], "flipped": text.replace("id=", "id=0", 1), "empty": "",
                    "version": text.replace("identity 1", "identity 3"),
                    "newer": with_checksum(text[:text.index("checksum=")].replace("identity 1", "identity 2"))}[damage])
    result = place.refused([*place.good(), place.mnt])
    assert result.returncode == 1
    assert ("newer keelfs" if damage == "newer" else "identity file is damaged") in result.stderr


# ---- damaged data ----

HEADER, RECORD = 64, 72  # bytes, docs/format-wal.md


def records_of(path):
    """The records of a segment: offset, size, kind, sequence, durable."""
    with open(path, "rb") as file:
        data = file.read()
    at, found = HEADER, []
    while data[at : at + 4] == b"KWR1":
        length, kind = struct.unpack_from("<IB", data, at + 4)
        sequence, _, durable = struct.unpack_from("<QQQ", data, at + 40)
        size = (RECORD + length + 7) // 8 * 8
        found.append((at, size, kind, sequence, durable))
        at += size
    return found


def change_bytes(path, at, new):
    with open(path, "r+b") as file:
        file.seek(at)
        old = file.read(len(new))
        file.seek(at)
        file.write(new)
    return old


@pytest.fixture
def written(place):
    """A node that has written some files, is idle, and was killed. .files is what was acknowledged."""
    node = place.start([*place.good(), place.mnt])
    wait_for(lambda: run(f"mkdir {place.mnt}/d", check=False).returncode == 0)
    place.files = {f"d/f{n}": f"value {n}\n" * 50 for n in range(40)}
    for name, content in place.files.items():
        with open(os.path.join(place.mnt, name), "w") as file:
            file.write(content)
    place.segment = os.path.join(place.data, "wal", "0000000000000001.wal")
    # Idle: a record says that everything before it is durable.
    wait_for(lambda: (r := records_of(place.segment))[-1][2] == 3 and r[-1][4] == r[-1][3] - 1)
    place.stop(node, signal.SIGKILL)
    wait_for(lambda: not processes_of_sessions({node.pid}))
    # LMDB's lock file belongs to the processes, not to the data.
    place.state = lambda: {k: v for k, v in tree_of(place.data).items() if not k.endswith("lock.mdb")}
    return place


def same_files(place):
    found = {}
    for name in place.files:
        with open(os.path.join(place.mnt, name)) as file:
            found[name] = file.read()
    return found == place.files


@pytest.mark.sanitizer
@pytest.mark.parametrize("where", ["first record", "middle", "body", "length", "before the last", "segment header"])
def test_a_damaged_log_is_refused_with_file_and_offset_and_left_as_it_is(written, where):
    place = written
    records = records_of(place.segment)
    assert len(records) > 50
    at = {
        "first record": records[0][0] + 20,
        "middle": records[len(records) // 2][0] + 30,
        "body": next(r for r in records[20:] if r[1] > RECORD + 100)[0] + RECORD + 40,
        "length": records[30][0] + 4,
        "before the last": records[-2][0] + 50,
        "segment header": 20,
    }[where]
    record = max((r[0] for r in records if r[0] <= at), default=0)
    with open(place.segment, "rb") as file:
        file.seek(at)
        byte = file.read(1)
    change_bytes(place.segment, at, bytes([byte[0] ^ 0x10]))
    before = place.state()
    for _ in range(2):  # the second try is told the same
        result = run([BINARY, *place.good(), place.mnt], check=False)
        assert result.returncode == 1, result.stderr
        last = result.stderr.splitlines()[-1]
        assert "error n1: log: " in last and "0000000000000001.wal" in last and "damaged" in last
        if where != "segment header":
            assert str(record) in re.findall(r"\d+", last), (record, last)
        assert "restore the data directory" in last and "do not delete the file" in last
        assert mounts_below(place.mnt) == []
    assert place.state() == before
    change_bytes(place.segment, at, byte)
    node = place.start([*place.good(), place.mnt])
    assert wait_for(lambda: same_files(place))
    assert place.stop(node) == 0


@pytest.mark.sanitizer
@pytest.mark.parametrize("tail", ["half a record", "garbage", "old bytes"])
def test_a_torn_tail_is_cut_and_nothing_acknowledged_goes_with_it(written, tail):
    place = written
    records = records_of(place.segment)
    at, size, *_ = records[-1]
    if tail == "half a record":
        change_bytes(place.segment, at + 40, bytes(size - 40))
    elif tail == "garbage":
        at += size
        change_bytes(place.segment, at, os.urandom(5000))
    else:
        with open(place.segment, "rb") as file:
            file.seek(records[10][0])
            old = file.read(2000)
        at += size
        change_bytes(place.segment, at, old)
    node = place.start([*place.good(), place.mnt])
    assert wait_for(lambda: same_files(place))
    assert "the last write before the crash was torn" in place.log(node)
    assert f"0000000000000001.wal was cut at byte {at}" in place.log(node)
    run(f"echo after > {place.mnt}/d/after")
    place.files["d/after"] = "after\n"
    place.stop(node, signal.SIGKILL)
    node = place.start([*place.good(), place.mnt])
    assert wait_for(lambda: same_files(place))
    assert "was torn" not in place.log(node)
    assert place.stop(node) == 0


def test_a_log_that_is_shorter_than_the_store_is_refused(written):
    """As after restoring one of the two from an older copy."""
    place = written
    node = place.start([*place.good(), place.mnt])  # replays, and checkpoints at its end
    assert wait_for(lambda: same_files(place))
    assert place.stop(node) == 0
    records = records_of(place.segment)
    change_bytes(place.segment, records[20][0], bytes(records[-1][0] + records[-1][1] - records[20][0]))
    before = place.state()
    result = run([BINARY, *place.good(), place.mnt], check=False)
    assert result.returncode == 1
    assert "log: " in result.stderr and "store" in result.stderr.splitlines()[-1]
    assert place.state() == before


def test_a_damaged_store_is_refused_or_detected_but_never_served_as_truth(written):
    place = written
    node = place.start([*place.good(), place.mnt])
    assert wait_for(lambda: same_files(place))
    assert place.stop(node) == 0
    database = os.path.join(place.data, "store", "data.mdb")
    size = os.path.getsize(database)
    shutil.copy(database, place.path("sound.mdb"))
    refused = detected = harmless = 0
    # Each page in turn: LMDB's own head of it, its middle, and near its end, where LMDB puts what it stores.
    for at in [page + within for page in range(0, size, 4096) for within in (16, 24, 2000, 4000)]:
        shutil.copy(place.path("sound.mdb"), database)
        byte = change_bytes(database, at, b"\0")
        change_bytes(database, at, bytes([byte[0] ^ 0x55]))
        node = subprocess.Popen([BINARY, *place.good(), place.mnt], stdin=subprocess.DEVNULL,
                                stderr=open(place.path("log"), "w"), start_new_session=True)
        node.log = open(place.path("log"))
        place.nodes.append(node)
        wait_for(lambda: " mounted on " in place.log(node) or node.poll() is not None)
        if node.poll() is not None:
            assert node.returncode == 1, (at, node.returncode, place.log(node))
            last = place.log(node).splitlines()[-1]
            assert "store: " in last and "damaged" in last and "restore the data directory" in last, (at, last)
            refused += 1
            continue
        wrong = keel.bounded(lambda: served_wrongly(place), 20)
        assert wrong != "content", f"wrong data after a flip at {at} of {size}"
        detected += wrong == "error"
        harmless += wrong is None
        code = place.stop(node)
        assert code == 0 or "the store is damaged" in place.log(node).splitlines()[-1], (at, code, place.log(node))
        for point in mounts_below(place.mnt):
            run(["umount", "-l", point])
    print(f"of {size} bytes: {refused} refused, {detected} detected, {harmless} harmless")
    assert refused > 0 and detected > 0


def test_a_store_that_was_cut_off_is_refused(written):
    place = written
    node = place.start([*place.good(), place.mnt])
    assert wait_for(lambda: same_files(place))
    assert place.stop(node) == 0
    database = os.path.join(place.data, "store", "data.mdb")
    for size in (os.path.getsize(database) - 4096, 8192, 4096, 100):
        os.truncate(database, size)
        before = place.state()
        result = run([BINARY, *place.good(), place.mnt], check=False)
        assert result.returncode == 1, (size, result.stderr)
        last = result.stderr.splitlines()[-1]
        assert "store: " in last and "restore the data directory" in last, (size, last)
        assert place.state() == before, size


def served_wrongly(place):
    """None if every file is right, "error" if one can't be read, "content" if something else than the truth is served."""
    result = None
    wait_for(lambda: sorted(os.listdir(os.path.join(place.mnt, "d"))) == sorted(os.path.basename(f) for f in place.files))
    for name, content in place.files.items():
        try:
            with open(os.path.join(place.mnt, name), "rb") as file:
                if file.read() != content.encode():
                    return "content"
        except OSError:
            result = "error"
    return result


# ---- a full disk ----

@pytest.fixture
def small_disk(place):
    """The data directory on a disk of its own, of 48 MiB."""
    os.mkdir(place.data)
    run(["mount", "-t", "tmpfs", "-o", "size=48m,mode=0700", "small", place.data])
    yield place
    for node in place.nodes:
        if node.poll() is None:
            node.terminate()
            node.wait(20)
    for point in reversed(mounts_below(place.dir)):
        run(["umount", "-l", point], check=False)


def append_until_it_fails(path, limit=2000):
    """Appends numbered blocks of 32 KiB to files of 20 blocks each; returns how many were acknowledged and the error."""
    acknowledged = 0
    try:
        for n in range(limit):
            descriptor = os.open(f"{path}-{n // 20}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                assert os.write(descriptor, block(n)) == len(block(n))
            finally:
                try:
                    os.close(descriptor)
                except OSError:
                    pass  # the mount may have died
            acknowledged += 1
    except OSError as error:
        return acknowledged, error
    return acknowledged, None


def block(n):
    return (b"%08d" % n) * 4096


def test_a_full_disk_stops_the_node_with_a_message_and_loses_nothing(small_disk):
    place = small_disk
    node = place.start([*place.good(), place.mnt])
    wait_for(lambda: run(f"mkdir {place.mnt}/d", check=False).returncode == 0)
    acknowledged, error = keel.bounded(lambda: append_until_it_fails(f"{place.mnt}/d/f"), 60)
    assert error is not None and acknowledged > 100
    assert node.wait(20) != 0
    last = place.log(node).splitlines()[-1]
    assert "no space" in last and "make space on its disk and start the node again" in last
    wait_for(lambda: not processes_of_sessions({node.pid}))
    run(["mount", "-o", "remount,size=300m", place.data])
    node = place.start([*place.good(), place.mnt])

    def look():
        for n in range(acknowledged):
            with open(f"{place.mnt}/d/f-{n // 20}", "rb") as file:
                file.seek(n % 20 * len(block(n)))
                assert file.read(len(block(n))) == block(n), n
        return True

    assert wait_for(lambda: keel.bounded(look, 30))
    more, error = keel.bounded(lambda: append_until_it_fails(f"{place.mnt}/d/g", 20), 60)
    assert (more, error) == (20, None)
    assert place.stop(node) == 0


def test_a_start_on_a_full_disk_is_refused_with_a_message(small_disk):
    place = small_disk
    with open(os.path.join(place.data, "filler"), "wb") as filler:
        try:
            while True:
                filler.write(bytes(1 << 16))
                filler.flush()
        except OSError:
            pass
    result = place.refused([*place.good(), place.mnt])
    assert result.returncode == 1
    assert "space" in result.stderr.splitlines()[-1].lower()
    os.unlink(os.path.join(place.data, "filler"))
    node = place.start([*place.good(), place.mnt])
    assert place.stop(node) == 0


def test_a_full_disk_of_one_node_does_not_stop_the_others():
    c = keel.Cluster(3)
    disk = os.path.join(c.dir, "n2", "data")
    os.makedirs(disk)
    run(["mount", "-t", "tmpfs", "-o", "size=40m,mode=0700", "small", disk])
    c.expected_log = ["make space on its disk and start the node again"]
    try:
        c.up()
        other = 1
        path = c.path(other, "f")
        assert keel.bounded(lambda: append_until_it_fails(path, 1000), 90) == (1000, None)
        wait_for(lambda: not processes_of_sessions({c.pid(2)}), 20, "n2 has stopped")
        assert "make space on its disk" in c.log(2)
        run(["mount", "-o", "remount,size=400m", disk])
        c.start(2)
        for k in range(0, 50, 7):
            assert c.read(2, f"f-{k}") == b"".join(block(n) for n in range(k * 20, k * 20 + 20))
        c.down()
    finally:
        if c.is_up:
            c.tool("down", timeout=60, check=False)
        run(["umount", "-l", disk])
        c.is_up = False
        c.close()


# ---- strangers at the peers' port ----

def frame(payload, kind=6, flags=0, length=None, zero=0, checksum=0):
    return struct.pack("<IBBHQ", len(payload) if length is None else length, kind, flags, zero, checksum) + payload


STRANGERS = {
    "text": b"GET / HTTP/1.1\r\nHost: n1\r\n\r\n" * 4,
    "random bytes": bytes((n * 7919 + n // 3) % 256 for n in range(100000)),
    "zeroes": bytes(4096),
    "an oversized frame": frame(b"x" * 70000),
    "a frame of four gigabytes": frame(b"x" * 100, length=0xFFFFFFFF),
    "a wrong checksum": frame(b"hello"),
    "an unknown type": frame(b"", kind=200),
    "an unknown flag": frame(b"", flags=0x80),
    "a reserved field": frame(b"", zero=7),
    "a message before the handshake": frame(b"x" * 40, kind=1),
    "half a head": frame(b"")[:7],
    "half a frame": frame(b"x" * 100, length=50000),
    "nothing": b"",
}


@pytest.mark.sanitizer
def test_strangers_at_the_peers_port_lose_their_connection_and_nothing_else_happens(make_cluster):
    c = make_cluster()
    c.write(1, "f", "0")
    with open(os.path.join(c.dir, "cluster")) as file:
        port = int(file.read().split()[1])
    before = {i: c.status(i) for i in c.nodes()}
    for n, (name, data) in enumerate(STRANGERS.items()):
        strangers = [socket.create_connection((f"127.0.1.{i}", port), timeout=10) for i in c.nodes()]
        for stranger in strangers:
            send_all(stranger, data)
        for stranger in strangers:
            closed_by_node(stranger, name)
        c.write(1 + n % 3, "f", str(n))
        assert c.read(1 + (n + 1) % 3, "f") == str(n).encode()
    for i in c.nodes():
        log = c.log(i)
        assert f"a connection to 127.0.1.{i}:{port} was closed: " in log
        assert "lost:" not in log, "a connection between members was lost"
        for same in ["term", "leader", "role"]:
            assert c.status(i)[same] == before[i][same]


def send_all(stranger, data):
    try:
        stranger.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        pass  # closed before it was all said


def closed_by_node(stranger, name):
    """The node closes: at once, or after a second if nothing was wrong yet. It has said at most a refusal."""
    received = b""
    try:
        while part := stranger.recv(1 << 16):
            received += part
    except ConnectionResetError:
        pass
    except socket.timeout:
        pytest.fail(f"{name}: the connection stays open")
    assert len(received) < 4200, name
    stranger.close()


def test_a_crowd_of_silent_strangers_does_not_keep_members_out(make_cluster):
    c = make_cluster()
    with open(os.path.join(c.dir, "cluster")) as file:
        port = int(file.read().split()[1])
    c.write(1, "f", "x")
    crowd = []
    try:
        for i in c.nodes():
            for _ in range(200):
                stranger = socket.socket()
                stranger.settimeout(5)
                stranger.connect((f"127.0.1.{i}", port))
                crowd.append(stranger)
        victim = c.followers()[0]
        c.kill(victim)
        c.start(victim)
        assert wait_for(lambda: c.read(victim, "f") == b"x")
    finally:
        for stranger in crowd:
            stranger.close()
    for i in c.nodes():
        wait_for(lambda: c.status(i)["quorum"] == "yes")


def test_a_truncated_connection_of_a_member_is_made_again(make_cluster):
    """Whoever sends a member's connection a reset only makes it dial again."""
    c = make_cluster()
    follower = c.followers()[0]
    before = c.status(follower)
    c.write(follower, "f", "x")
    with open(os.path.join(c.dir, "cluster")) as file:
        port = int(file.read().split()[1])
    other = next(i for i in c.followers() if i != follower)
    for a, b in [(follower, other), (other, follower)]:
        run(["ss", "-K", "src", f"127.0.1.{a}", "dst", f"127.0.1.{b}", "dport", "=", f":{port}"], check=False)
    wait_for(lambda: all("state=disconnected" not in c.read(i, "@keel/members").decode() for i in c.nodes()))
    c.write(follower, "f", "y")
    assert c.read(other, "f") == b"y"
    assert c.status(follower)["term"] == before["term"]
