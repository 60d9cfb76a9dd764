"""The tour in the README works word for word."""

import os
import re
import subprocess

import keel

README = os.path.join(keel.ROOT, "README.md")
MARK = "--- end of step ---"


def steps():
    """(command, expected output) of every console block in the tour."""
    tour = open(README, encoding="utf-8").read().split("## A tour")[1].split("\n## ")[0]
    found = []
    for block in re.findall(r"```console\n(.*?)```", tour, re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def matches(expected, got):
    """`…` stands for anything within its line; alone on a line, for any lines."""
    pattern = "\n".join(
        "(?:.*\n?)*" if line == "…" else re.escape(line).replace("…", ".*") for line in expected
    )
    return re.fullmatch(pattern, got) is not None


def run_tour(shell, tour):
    for command, expected in tour:
        shell.stdin.write(f"{{ {command}\n}} 2>&1; echo; echo '{MARK}'\n")
        shell.stdin.flush()
        lines = []
        for line in shell.stdout:
            if line.rstrip("\n") == MARK:
                break
            lines.append(line.rstrip("\n"))
        got = "\n".join(lines).rstrip("\n")
        assert matches(expected, got), f"$ {command}\n{got}\n\nexpected:\n" + "\n".join(expected)


def test_tour_in_the_readme_works_word_for_word():
    tour = steps()
    assert len(tour) > 25
    shell = subprocess.Popen(
        ["bash", "--norc"], cwd=keel.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )
    try:
        run_tour(shell, tour)
    finally:
        shell.kill()
        subprocess.run([keel.TOOL, "down", "/tmp/keel"], timeout=60, check=False)
        subprocess.run(["rm", "-rf", "--one-file-system", "/tmp/keel"], check=False)
