"""How the tree should look: every source is built, headers stand alone, lengths, banned calls, no
leftovers, formatting. Needs no build, but looks into one for the list of sources if there is one."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("KEEL_BUILD", ROOT / "build"))

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800
COLUMNS_MAX = 100

BANNED = re.compile(
    r"\b(strcpy|sprintf|vsprintf|gets|strtok|rand|srand|random|alloca)\s*\(")
UV_NOW = re.compile(r"\buv_now\s*\(")  # stale: only for the timer itself
LEFTOVER = re.compile(r"\b(" + "|".join(["FIX" + "ME", "TO" + "DO", "X" + "XX"]) + r")\b")
TEXT = {".c", ".h", ".py", ".sh", ".md", ".proto", ".build", ".txt", ".ini", ".conf", ".service"}


def files(*folders, suffixes):
    found = []
    for folder in folders:
        found += [p for p in (ROOT / folder).rglob("*") if p.is_file() and p.suffix in suffixes]
    return sorted(p for p in found if "__pycache__" not in p.parts)


def c_files(*folders):
    return files(*folders, suffixes={".c", ".h"})


def name_of(path):
    return str(path.relative_to(ROOT))


def without_comments(text):
    """Code with comments blanked (line numbers stay), and the insides of strings gone."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0)) if match.group(0)[0] == "/" else '""'

    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.DOTALL)


# ---- built ----

def named_in_meson():
    named = set()
    for build in ROOT.rglob("meson.build"):
        for token in re.findall(r"'([^'\n]+\.c)'", build.read_text()):
            named.add((build.parent / token).resolve())
    return named


def known_to_build():
    info = BUILD / "meson-info" / "intro-targets.json"
    if not info.exists():
        return set()
    return {pathlib.Path(source).resolve() for target in json.loads(info.read_text())
            for group in target["target_sources"] for source in group.get("sources", [])}


def test_every_c_file_is_named_in_a_meson_build():
    named = named_in_meson() | known_to_build()
    lost = [name_of(p) for p in files("src", "tools", "tests", suffixes={".c"})
            if p.resolve() not in named]
    assert not lost, f"in no meson.build: {lost}"


def test_headers_stand_alone(tmp_path):
    subprocess.run(["protoc-c", f"--c_out={tmp_path}", f"--proto_path={ROOT / 'src'}",
                    str(ROOT / "src" / "command.proto")], check=True)
    flags = subprocess.run(
        ["pkg-config", "--cflags", "fuse3", "libuv", "libprotobuf-c", "lmdb", "libxxhash"],
        check=True, text=True, capture_output=True).stdout.split()
    headers = [str(p) for p in files("src", suffixes={".h"})]
    result = subprocess.run(
        ["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-Wall", "-Werror",
         "-fsyntax-only", f"-I{ROOT / 'src'}", f"-I{tmp_path}", *flags, "-x", "c", *headers],
        text=True, capture_output=True)
    assert result.returncode == 0, result.stderr


# ---- lengths ----

def functions(lines):
    """(line number, length) of each function: its brace stands alone in the first column."""
    start = None
    for number, line in enumerate(lines, 1):
        if line.rstrip() == "{":
            start = number
        elif line.startswith("}") and start is not None:
            yield start, number - start + 1
            start = None


def test_functions_are_short():
    long = [f"{name_of(p)}:{at}: {length} lines" for p in files("src", suffixes={".c"})
            for at, length in functions(p.read_text().splitlines()) if length > FUNCTION_LINES_MAX]
    assert not long, "\n".join(long)


def test_files_are_short():
    long = [f"{name_of(p)}: {n}" for p in c_files("src")
            if (n := len(p.read_text().splitlines())) > FILE_LINES_MAX]
    assert not long, long


def test_lines_are_short():
    long = [f"{name_of(p)}:{number}: {len(line)} columns" for p in c_files("src")
            for number, line in enumerate(p.read_text().splitlines(), 1)
            if len(line.expandtabs()) > COLUMNS_MAX]
    assert not long, "\n".join(long)


def test_the_measure_of_functions_works():
    text = ["int f(void)", "{", "    if (x) {", "    }", "}", "struct s {", "    int x;", "};"]
    assert list(functions(text)) == [(2, 4)]


# ---- contents ----

def hits(paths, pattern, prepare=lambda text: text):
    return [f"{name_of(p)}:{number}: {line.strip()}" for p in paths
            for number, line in enumerate(prepare(p.read_text()).splitlines(), 1)
            if pattern.search(line)]


def test_banned_functions_are_not_called():
    bad = hits(c_files("src", "tools", "tests"), BANNED, without_comments)
    assert not bad, "\n".join(bad)


def test_the_loops_stale_clock_is_not_read():
    paths = [p for p in c_files("src") if "timer" not in p.name]
    bad = hits(paths, UV_NOW, without_comments)
    assert not bad, "\n".join(bad)


def test_nothing_is_left_for_later():
    paths = files("src", "tools", "tests", "examples", "docs", suffixes=TEXT)
    paths += [p for p in (ROOT / "tools").iterdir() if p.is_file() and p.suffix == ""]
    bad = hits(paths, LEFTOVER)
    assert not bad, "\n".join(bad)


def test_no_line_ends_in_white_space():
    paths = files("src", "tools", "tests", "examples", "docs", suffixes=TEXT - {".txt"})
    bad = hits(paths, re.compile(r"[ \t]+$"))
    assert not bad, "\n".join(bad)


def test_each_c_file_opens_with_what_lives_in_it():
    bad = [name_of(p) for p in c_files("src", "tools") if not p.read_text().startswith("/*")]
    assert not bad, bad


def test_the_patterns_find_what_they_are_for():
    assert BANNED.search("    strcpy(a, b);") and not BANNED.search("    strtok_r(a, b, &c);")
    assert not BANNED.search(without_comments('/* gets( */ f("rand(");'))
    assert without_comments("a /* b\nc */ d\n").count("\n") == 2
    assert LEFTOVER.search("/* TO" + "DO: */")


# ---- format ----

@pytest.mark.skipif(shutil.which("clang-format") is None, reason="clang-format is not installed")
def test_sources_are_formatted():
    differ = []
    for path in c_files("src"):
        formatted = subprocess.run(["clang-format", str(path)], check=True, text=True,
                                   capture_output=True).stdout
        if formatted != path.read_text():
            differ.append(name_of(path))
    assert not differ, f"clang-format -i {' '.join(differ)}"
