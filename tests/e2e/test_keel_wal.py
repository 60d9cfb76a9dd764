"""keel-wal: what it says of sound, torn and damaged logs, that it says what a node's start says, and that it changes nothing."""

import ctypes
import os
import re
import shutil
import struct

import pytest

import keel
from keel import ROOT, run, wait_for

KEEL_WAL = os.environ.get(
    "KEEL_WAL", os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(keel.BINARY))), "tools", "keel-wal"))
GOLDEN = os.path.join(ROOT, "tests", "data", "wal")
HEADER = 64
RECORD = 72
SOUND, TORN, DAMAGED, TROUBLE = 0, 1, 2, 3


def keel_wal(*arguments, code=0, **options):
    result = run([KEEL_WAL, *map(str, arguments)], check=False, **options)
    assert result.returncode == code, f"{result.returncode}\n{result.stdout}{result.stderr}"
    return result


def segment(epoch):
    return f"{epoch:016x}.wal"


@pytest.fixture
def young(tmp_path):
    """The golden log of one segment."""
    shutil.copy(os.path.join(GOLDEN, "golden-v1.wal"), tmp_path / segment(1))
    return tmp_path


@pytest.fixture
def old(tmp_path):
    """The golden log that begins with segment 4, and has a reset and a recycled file that is not in use yet."""
    for epoch in (4, 5, 6):
        shutil.copy(os.path.join(GOLDEN, f"golden-v1-{segment(epoch)}"), tmp_path / segment(epoch))
    return tmp_path


def records(path):
    """(offset, size, kind, sequence, durable) of each, up to the first that has no magic."""
    data = path.read_bytes()
    at = HEADER
    while data[at:at + 4] == b"KWR1":
        length, kind = struct.unpack_from("<IB", data, at + 4)
        sequence, = struct.unpack_from("<Q", data, at + 40)
        durable, = struct.unpack_from("<Q", data, at + 56)
        size = (RECORD + length + 7) & ~7
        yield at, size, kind, sequence, durable
        at += size


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def everything(directory):
    found = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[path] = (file.read(), os.stat(path).st_mtime_ns)
    return found


# ---- logs without a node ----

def test_list_has_a_line_for_each_segment(old):
    head, *lines = keel_wal("list", old).stdout.splitlines()
    assert head.split() == ["FILE", "EPOCH", "SEQUENCE", "RECORDS", "ENTRIES", "USED", "SIZE", "NOTE"]
    assert [line.split()[:2] for line in lines] == [[segment(epoch), str(epoch)] for epoch in (4, 5, 6)]
    for line, epoch in zip(lines[:2], (4, 5)):
        _, _, first, count, entries, used, size = line.split()[:7]
        there = list(records(old / segment(epoch)))
        assert int(first) == there[0][3]
        assert int(size) == (old / segment(epoch)).stat().st_size
        assert int(count) <= len(there)  # what an older segment has left may follow
        assert int(used) == sum(size for _, size, *_ in there[:int(count)]) + HEADER
        assert re.fullmatch(r"\d+-\d+", entries)
    assert lines[1].endswith("recycled")
    assert lines[2].split()[2:6] == ["-", "0", "-", "0"] and lines[2].endswith("made ready, not in use")


def test_dump_has_a_line_for_each_record_with_its_fields(young):
    head, *lines = keel_wal("dump", young).stdout.splitlines()
    assert head.startswith(f"{segment(1)} epoch=1 sequence=1 cluster=")
    there = list(records(young / segment(1)))
    assert len(lines) == len(there) > 5
    for line, (offset, _, _, sequence, durable) in zip(lines, there):
        assert line.split()[0] == str(offset)
        assert f" sequence={sequence} durable={durable}" in line


def test_dump_begins_and_ends_where_it_is_told(young):
    lines = keel_wal("dump", young, "--from", 3, "--count", 2).stdout.splitlines()
    assert len(lines) == 3 and " index=3 " in lines[1]
    assert keel_wal("dump", young, "--from", 10**9).stdout == ""


def test_dump_of_one_segment(old):
    lines = keel_wal("dump", old, "--segment", segment(5)).stdout.splitlines()
    assert lines[0].startswith(segment(5)) and lines[0].endswith(" recycled")
    assert not any(line.startswith(segment(4)) for line in lines)
    assert any(" hard-state " in line for line in lines)
    assert any(" reset " in line for line in keel_wal("dump", old).stdout.splitlines())


def test_check_of_a_sound_log(young):
    assert ": sound: entries up to " in keel_wal("check", young).stdout


def test_check_of_a_sound_log_that_has_lost_its_beginning(old):
    before = everything(old)
    assert ": sound: entries up to " in keel_wal("check", old).stdout
    assert everything(old) == before


def test_each_flipped_byte_of_a_record_is_damage_or_a_torn_end(young):
    """And the place is the record in which it is. Only the last record is not known to have been synced."""
    path = young / segment(1)
    good = path.read_bytes()
    there = list(records(path))
    for offset, size, _, sequence, _ in there:
        flip(path, offset + size // 2)
        before = everything(young)
        last = sequence == there[-1][3]
        answer = keel_wal("check", young, code=TORN if last else DAMAGED).stdout
        assert f"{segment(1)} at offset {offset}" in answer
        assert ("harmless" in answer) == last
        assert everything(young) == before
        assert f"# the chain ends at offset {offset}" in keel_wal("dump", young).stdout
        path.write_bytes(good)


def test_a_missing_segment_is_told_by_name(old):
    os.unlink(old / segment(5))
    answer = keel_wal("check", old, code=DAMAGED).stdout
    assert f"{segment(5)} is missing" in answer


def test_a_newer_log_is_told_as_newer(young):
    path = young / segment(1)
    data = bytearray(path.read_bytes())
    data[8] = 9
    xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    xxh3.restype = ctypes.c_uint64
    data[56:64] = struct.pack("<Q", xxh3(bytes(data[:56]), ctypes.c_size_t(56)))
    path.write_bytes(data)
    assert "newer version" in keel_wal("check", young, code=DAMAGED).stdout
    assert keel_wal("list", young).stdout.splitlines()[1].endswith("written by a newer keelfs")


# ---- usage ----

@pytest.mark.parametrize("arguments, words", [
    ([], "a command and a directory are wanted"),
    (["list"], "a command and a directory are wanted"),
    (["mend", "."], "the commands are list, check and dump"),
    (["list", ".", "--from", "3"], "are for dump"),
    (["dump", ".", "--from", "x"], "--from takes the index"),
    (["dump", ".", "--count", "0"], "--count takes a number"),
    (["dump", ".", "--colour"], "--help"),
    (["list", "no/such/place"], "No such file or directory"),
    (["check", "."], "there is no log in"),
    (["list", "."], "there is no log in"),
    (["dump", "."], "there is no log in"),
])
def test_wrong_usage_says_what_is_right(tmp_path, arguments, words):
    assert words in keel_wal(*arguments, code=TROUBLE, cwd=tmp_path).stderr


def test_help():
    text = keel_wal("--help").stdout
    for word in ["list", "check", "dump", "--from", "--wal-dir", "exit status"]:
        assert word in text


def test_a_segment_that_is_not_there(young):
    assert "there is no segment" in keel_wal("dump", young, "--segment", segment(7), code=TROUBLE).stderr


# ---- the log of a node ----

def data_dir(c, i=1):
    return os.path.join(c.dir, f"n{i}", "data")


def last_segment(c):
    directory = os.path.join(data_dir(c), "wal")
    lines = keel_wal("list", directory).stdout.splitlines()[1:]
    used = [line.split() for line in lines if "not in use" not in line]
    return os.path.join(directory, used[-1][0]), int(used[-1][5])


def is_idle(c):
    """The durable record that follows the last write is there."""
    lines = keel_wal("dump", data_dir(c)).stdout.splitlines()
    return lines[-1].split()[1] == "durable"


def flip_file(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


@pytest.mark.cluster(nodes=1)
def test_what_check_says_is_what_the_start_says(cluster):
    c = cluster
    c.mkdir(1, "conf")
    c.write(1, "conf/db", "twelve bytes")
    c.write(1, "conf/gone@ttl=100", "x")
    c.rename(1, "conf/db", "conf/data base")
    wait_for(lambda: is_idle(c), 20, "the log falls idle")
    running = keel_wal("check", data_dir(c))
    assert "a node is running with this log" in running.stderr and ": sound: " in running.stdout
    c.kill(1)

    text = keel_wal("dump", data_dir(c)).stdout
    for words in [
        r" config +term=1 index=1 .* voters n1; n1 at 127\.0\.1\.1:\d+$",
        r" hard-state .* commit \d+, vote n1$",
        r": create parent 1 name conf kind dir mode 0755 ino \d+ exclusive$",
        r": create parent \d+ name db kind file .*, 12 bytes$",
        r": rename parent \d+ name db new_parent \d+ new_name data\\040base",
        r": create .* bind \( ttl_ms 100000",
        r": open_session node n1 ",
    ]:
        assert re.search(words, text, re.MULTILINE), f"{words} is not in\n{text}"

    before = everything(data_dir(c))
    sound = keel_wal("check", data_dir(c))
    assert ": sound: " in sound.stdout and "running" not in sound.stderr and ", applied " in sound.stdout
    assert keel_wal("check", os.path.join(data_dir(c), "wal")).stdout.split(": ", 1)[1] == sound.stdout.split(": ", 1)[1]
    assert everything(data_dir(c)) == before

    # A write that was torn: half a record behind the last one.
    path, used = last_segment(c)
    with open(path, "r+b") as file:
        file.seek(used)
        file.write(b"KWR1" + struct.pack("<IB", 8, 2) + b"\0" * 20)
    torn = keel_wal("check", data_dir(c), code=TORN).stdout
    assert f"{os.path.basename(path)} at offset {used} (harmless" in torn
    c.start(1)
    assert f"{os.path.basename(path)} was cut at byte {used}" in c.log(1)
    assert c.read(1, "conf/data base") == b"twelve bytes"
    wait_for(lambda: is_idle(c), 20, "the log falls idle")
    c.kill(1)

    # A record that rots.
    flip_file(path, HEADER + 40)
    damaged = keel_wal("check", data_dir(c), code=DAMAGED).stdout
    reason = damaged.split("would not start: ", 1)[1].strip()
    assert "the log is damaged" in reason and f"offset {HEADER}" in reason
    assert c.tool("start", 1, check=False).returncode != 0
    assert f"error n1: log: {reason}" in c.log(1)
    flip_file(path, HEADER + 40)

    # The log of another moment.
    away = os.path.join(c.dir, "away")
    os.rename(os.path.join(data_dir(c), "wal"), away)
    assert "elsewhere" in keel_wal("check", data_dir(c), code=TROUBLE).stderr
    assert ": sound: " in keel_wal("check", data_dir(c), "--wal-dir", away).stdout
    os.mkdir(os.path.join(data_dir(c), "wal"))
    assert "store is ahead of the log" in keel_wal("check", data_dir(c), code=DAMAGED).stdout
    os.rmdir(os.path.join(data_dir(c), "wal"))
    os.rename(away, os.path.join(data_dir(c), "wal"))
    assert ": sound: " in keel_wal("check", data_dir(c)).stdout
