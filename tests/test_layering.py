"""Who may know whom (docs/architecture.md): the includes of each part of src/, and what the static
libraries of the pure parts call. The second half reads a release build: $KEEL_BUILD, or build/."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
BUILD = pathlib.Path(os.environ.get("KEEL_BUILD", ROOT / "build"))

# ---- includes ----

SHARED = {
    "arena.h", "buf.h", "bytes.h", "check.h", "err.h", "hash.h", "heap.h", "keel_limits.h",
    "list.h", "mutant.h", "rng.h", "units.h",
}
COMMAND = {"command.h", "command.pb-c.h"}

# Headers of the C library that only give types, constants and functions without an outside world. <stdio.h> is for
# snprintf, <sys/stat.h> for mode bits, <sys/uio.h> for struct iovec, <errno.h> for the table in err.h: what is called
# is looked at below.
PURE_SYSTEM = {
    "endian.h", "errno.h", "inttypes.h", "limits.h", "stdalign.h", "stdarg.h", "stdatomic.h",
    "stdbool.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h", "sys/stat.h", "sys/uio.h",
}

# Which part a file belongs to: the first pattern that matches its path below src/.
PARTS = [
    ("kv_lmdb", r"mvcc/kv_lmdb\.c"),
    ("disk_posix", r"wal/disk_posix\.c"),
    ("message", r"peer/(message|frame)\.[ch]"),
    ("raft", r"raft/.*"),
    ("wal", r"wal/.*"),
    ("mvcc", r"mvcc/.*"),
    ("lease", r"lease/.*"),
    ("watch", r"watch/.*"),
    ("peer", r"peer/.*"),
    ("fs", r"fs/.*"),
    ("command", r"command\.[ch]"),
    ("change", r"change\.h"),
    ("env", r"env\.h"),
    ("apply", r"apply(_\w+)?\.[ch]"),
    ("replica", r"replica(_\w+)?\.[ch]"),
    ("log", r"log\.[ch]"),
    ("base", r"(arena|buf|bytes|check|err|hash|heap|keel_limits|list|mutant|rng|units)\.[ch]"),
    ("mountinfo", r"mountinfo\.[ch]"),
    ("outside", r"(data_dir|worker|lookout|options|config)\.[ch]"),
    ("install", r"store_(install|defrag)\.[ch]"),
    ("root", r"(node(_\w+)?|keelfs)\.[ch]"),
]

# Project headers of a part, beside those of its own: exact names.
MAY_INCLUDE = {
    "base": SHARED,
    "log": SHARED,
    "raft": SHARED,
    "lease": SHARED,
    "watch": SHARED | {"change.h"},
    "wal": SHARED | {"raft/types.h"},
    "disk_posix": SHARED | {"wal/disk.h"},
    "mvcc": SHARED,
    "kv_lmdb": SHARED | {"mvcc/kv.h"},
    "message": SHARED | {"raft/types.h"},
    "peer": SHARED | {"raft/types.h", "log.h", "command.pb-c.h", "peer/message.h", "peer/frame.h"},
    "command": SHARED | COMMAND,
    "change": SHARED | {"mvcc/mvcc.h"},
    "env": SHARED | {"change.h", "mvcc/kv.h", "peer/message.h", "wal/wal.h"},
    "apply": SHARED | COMMAND | {
        "change.h", "lease/lease.h", "mvcc/mvcc.h", "raft/config.h", "raft/quorum.h", "raft/types.h",
    },
    "replica": SHARED | COMMAND | {
        "apply.h", "change.h", "env.h", "lease/lease.h", "mvcc/mvcc.h", "mvcc/snapshot.h",
        "peer/message.h", "raft/config.h", "raft/quorum.h", "raft/raft.h", "raft/types.h", "wal/wal.h",
    },
    "fs": SHARED | COMMAND | {"log.h", "mountinfo.h", "mvcc/mvcc.h", "replica.h", "change.h"},
    "mountinfo": SHARED,
    "outside": SHARED | {"log.h", "mountinfo.h"},
    "install": SHARED | {"mvcc/kv.h", "mvcc/mvcc.h", "mvcc/snapshot.h"},
}

# System and library headers of a part; a part that is not named has PURE_SYSTEM.
XXHASH, UV, FUSE = {"xxhash.h"}, {"uv.h"}, {"fuse_lowlevel.h", "linux/fuse.h"}
LIBRARIES = XXHASH | UV | FUSE | {"lmdb.h", "jansson.h", "ini.h", "protobuf-c/protobuf-c.h"}
MAY_USE_LIBRARY = {
    "base": XXHASH | {"protobuf-c/protobuf-c.h"},
    "command": {"protobuf-c/protobuf-c.h"},
    "kv_lmdb": {"lmdb.h"},
    "peer": UV,
    "fs": UV | FUSE,
    "outside": UV | {"ini.h"},
}
NOT_PURE = {"kv_lmdb", "disk_posix", "peer", "fs", "log", "mountinfo", "outside", "install"}

INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


def sources():
    return sorted(p for p in SRC.rglob("*.[ch]"))


def part_of(name):
    for part, pattern in PARTS:
        if re.fullmatch(pattern, name):
            return part
    return None


def own_header(part, header):
    """A header of the same part, or of the folder that the part is in."""
    return part_of(header) == part or (part == "peer" and header.startswith("peer/"))


def bad_includes(name, text):
    part = part_of(name)
    if part == "root":
        return
    for ours, system in INCLUDE.findall(text):
        if ours and not own_header(part, ours) and ours not in MAY_INCLUDE[part]:
            yield f'{name}: "{ours}" is not for {part}'
        if system in LIBRARIES:
            if system not in MAY_USE_LIBRARY.get(part, set()):
                yield f"{name}: <{system}> is not for {part}"
        elif system and part not in NOT_PURE and system not in PURE_SYSTEM:
            yield f"{name}: <{system}> in {part}, which is pure"


def test_every_source_belongs_to_a_part():
    lost = [str(p.relative_to(SRC)) for p in sources() if part_of(str(p.relative_to(SRC))) is None]
    assert not lost, f"name their part in PARTS: {lost}"


def test_each_part_includes_only_what_it_may_know():
    bad = []
    for path in sources():
        name = str(path.relative_to(SRC))
        if part_of(name) is not None:
            bad += bad_includes(name, path.read_text())
    assert not bad, "\n".join(bad)


def test_nobody_includes_node_h_but_the_composition_root():
    users = {
        str(p.relative_to(SRC)) for p in sources() if re.search(r'#include "node\.h"', p.read_text())
    }
    assert {u for u in users if part_of(u) != "root"} == set()


@pytest.mark.parametrize("name, line", [
    ("raft/log.c", '#include "mvcc/mvcc.h"'),
    ("raft/log.c", "#include <time.h>"),
    ("fs/session.c", '#include "raft/raft.h"'),
    ("fs/session.c", "#include <lmdb.h>"),
    ("mvcc/store.c", "#include <lmdb.h>"),
    ("mvcc/store.c", "#include <unistd.h>"),
    ("peer/pool.c", '#include "replica.h"'),
    ("apply.c", '#include "raft/raft.h"'),
    ("lease/lease.c", '#include "log.h"'),
])
def test_a_wrong_include_would_be_found(name, line):
    assert len(list(bad_includes(name, line + "\n"))) == 1


# ---- symbols ----

# What pure code may call of the C library: memory that it is given, and text in it.
PURE_CALLS = re.compile(
    r"""mem(cpy|move|set|cmp|chr|rchr|mem) | bcmp
      | str(len|nlen|cmp|ncmp|chr|rchr|spn|cspn|str)
      | v?snprintf | free | qsort | bsearch | abort
      | __(memcpy|memmove|memset|snprintf|vsnprintf)_chk
      | __stack_chk_fail | _GLOBAL_OFFSET_TABLE_ | __popcountdi2""",
    re.VERBOSE,
)

# The libraries whose functions each pure library may call beside that.
LIBRARY_KNOWS = {
    "raft": ["base"],
    "lease": ["base"],
    "mvcc": ["base"],
    "wal": ["base", "raft"],
    "message": ["base", "raft"],
    "command": ["base", "proto"],
    "apply": ["base", "proto", "command", "mvcc", "lease", "raft"],
    "replica": ["base", "proto", "command", "apply", "mvcc", "lease", "raft", "message", "wal"],
}
PROTOBUF = re.compile(r"protobuf_c_\w+")


def nm(archive, *options):
    """(member, kind, symbol) of each line."""
    out = subprocess.run(["nm", "-A", *options, str(archive)], check=True, text=True,
                         capture_output=True).stdout
    for line in out.splitlines():
        member, rest = line.rsplit(":", 1)
        fields = rest.split()
        yield pathlib.PurePath(re.split(r"[:/]", member)[-1]).name, fields[-2], fields[-1]


def library(name):
    found = sorted(BUILD.glob(f"**/lib{name}.a"))
    assert len(found) == 1, f"lib{name}.a in {BUILD}: {found or 'not there; run tools/build first'}"
    return found[0]


def defined(name):
    return {s for _, _, s in nm(library(name), "--defined-only", "-g")}


def undefined(name):
    return {s for _, _, s in nm(library(name), "-u")} - defined(name)


def pure_base():
    """What base offers to pure code: all of it but the log."""
    return {s for member, _, s in nm(library("base"), "--defined-only", "-g")
            if not member.endswith("log.c.o")}


def symbols_known_to(name):
    known = set()
    for other in LIBRARY_KNOWS[name]:
        known |= pure_base() if other == "base" else defined(other)
    return known


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not installed")
@pytest.mark.parametrize("name", sorted(LIBRARY_KNOWS))
def test_a_pure_library_calls_no_clock_chance_file_socket_thread_or_environment(name):
    protobuf = "proto" in LIBRARY_KNOWS[name]
    bad = {s for s in undefined(name) - symbols_known_to(name)
           if not PURE_CALLS.fullmatch(s) and not (protobuf and PROTOBUF.fullmatch(s))}
    assert not bad, f"lib{name}.a calls {sorted(bad)}"


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not installed")
def test_what_base_gives_to_pure_code_is_pure_too():
    ends_the_process = {"check.c.o"}  # allocation that can't fail, and the last words
    own = defined("base")
    bad = {(member, s) for member, _, s in nm(library("base"), "-u")
           if s not in own and not member.endswith("log.c.o")
           and not any(member.endswith(e) for e in ends_the_process)
           and not PURE_CALLS.fullmatch(s) and not re.fullmatch(r"XXH\w+|protobuf_c_\w+", s)}
    assert not bad, bad


def test_the_list_of_pure_calls_has_no_outside_world_in_it():
    for call in ["time", "clock_gettime", "rand", "getrandom", "open", "read", "write", "socket",
                 "pthread_create", "getenv", "malloc", "printf", "sleep", "uv_now"]:
        assert not PURE_CALLS.fullmatch(call)


def test_a_call_of_the_clock_would_be_found(tmp_path):
    source = tmp_path / "impure.c"
    source.write_text("#include <time.h>\nlong f(void);\nlong f(void) { return time(0); }\n")
    subprocess.run(["gcc", "-c", str(source), "-o", str(tmp_path / "impure.c.o")], check=True)
    subprocess.run(["ar", "rcT", "libimpure.a", "impure.c.o"], check=True, cwd=tmp_path)
    archive = tmp_path / "libimpure.a"
    called = {s for _, _, s in nm(archive, "-u")}
    assert {s for s in called if not PURE_CALLS.fullmatch(s)} == {"time"}
    assert [member for member, _, _ in nm(archive, "--defined-only", "-g")] == ["impure.c.o"]
