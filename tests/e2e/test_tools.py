"""Programs that people use, on the mounts: what one does on a node is right on the others. Those that are not installed are skipped."""

import os
import shutil
import sys
import tempfile

import pytest

from hands import in_parallel
from keel import bounded

A, B, C = 1, 2, 3


def needs(*programs):
    missing = [name for name in programs if shutil.which(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def version(c, name, node=B):
    return int(c.xattr(node, name, "user.keel.version"))


@pytest.fixture
def tree(tmp_path):
    """A tree of this machine with something of everything."""
    root = tmp_path / "tree"
    (root / "sub" / "deeper").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "small").write_text("small\n")
    (root / "none").write_text("")
    (root / "sub" / "script").write_text("#!/bin/sh\necho run\n")
    (root / "sub" / "script").chmod(0o755)
    (root / "sub" / "deeper" / "large").write_bytes(os.urandom(300_001))
    (root / "with space").write_text("x")
    (root / "ünïcödé").write_text("y")
    (root / "link").symlink_to("sub/deeper/large")
    (root / "dangling").symlink_to("nowhere")
    (root / "full-buffers").write_bytes(os.urandom(65_536))
    (root / "suid").write_bytes(os.urandom(8192))
    os.chown(root / "suid", 1234, 2345)
    os.chmod(root / "suid", 0o6755)
    os.chmod(root / "small", 0o640)
    os.chown(root / "small", 1234, 2345)
    for number, path in enumerate(sorted(root.rglob("*"))):
        os.utime(path, ns=(10**18 + number, 10**18 + 2 * number), follow_symlinks=False)
    return root


def described(root):
    """Everything below it that a copy has to keep."""
    found = {}
    for directory, names, files in os.walk(root):
        for name in names + files:
            path = os.path.join(directory, name)
            s = os.lstat(path)
            if os.path.islink(path):
                content = os.readlink(path)
            else:
                content = None if os.path.isdir(path) else open(path, "rb").read()
            times = None if os.path.isdir(path) else s.st_mtime_ns
            found[os.path.relpath(path, root)] = (oct(s.st_mode), s.st_uid, s.st_gid, times, content)
    return found


# ---- copying trees ----

@pytest.mark.sanitizer
def test_cp_a_keeps_everything(shared_cluster, d, tree, tmp_path):
    c = shared_cluster
    c.run(f"cp -a {tree} {d}/tree", A, timeout=60)
    assert c.call(B, described, f"{d}/tree") == described(tree)
    c.run(f"cp -a {d}/tree {d}/again && cp -a {d}/again {tmp_path}/back", C, timeout=60)
    assert c.call(A, described, f"{d}/again") == described(tree) == described(tmp_path / "back")
    c.run(f"cp -a {tree}/. {d}/tree/", B, timeout=60)
    assert c.call(A, described, f"{d}/tree") == described(tree)


def test_tar_packs_and_unpacks(shared_cluster, d, tree, tmp_path):
    c = shared_cluster
    c.run(f"tar -C {tree.parent} --format=posix -cf {tmp_path}/t.tar tree && tar -C {d} -xpf {tmp_path}/t.tar", A, timeout=60)
    assert c.call(B, described, f"{d}/tree") == described(tree)
    c.run(f"tar -C {d} --format=posix -czf {d}/t.tgz tree && mkdir {d}/x && tar -C {d}/x -xpzf {d}/t.tgz", C, timeout=60)
    assert c.call(A, described, f"{d}/x/tree") == described(tree)
    c.run(f"tar -C {d} -df {tmp_path}/t.tar", B)


def test_an_unpacked_file_has_few_revisions(shared_cluster, d, tmp_path):
    c = shared_cluster
    (tmp_path / "f").write_bytes(bytes(102_400))
    c.run(f"tar -C {tmp_path} -cf {tmp_path}/t.tar f && tar -C {d} -xf {tmp_path}/t.tar", A)
    # Creation (tar makes it with O_EXCL), content, and its time.
    assert version(c, f"{d}/f") <= 4
    assert c.read(C, f"{d}/f") == bytes(102_400)


def test_cp_by_a_user_keeps_time_and_set_user_id_of_full_buffers(shared_cluster, d):
    c = shared_cluster
    source = tempfile.mkdtemp(dir="/tmp")
    try:
        os.chmod(source, 0o755)
        with open(f"{source}/f", "wb") as file:
            file.write(bytes(8192))
        os.chown(f"{source}/f", 65534, 65534)
        os.chmod(f"{source}/f", 0o4755)
        os.utime(f"{source}/f", (1000, 2000))
        c.run(f"setpriv --reuid 65534 --regid 65534 --clear-groups cp -p {source}/f {d}/f", A)
    finally:
        shutil.rmtree(source)
    s = c.stat(B, f"{d}/f")
    assert (s.st_uid, s.st_mtime, s.st_mode & 0o7777, s.st_size) == (65534, 2000, 0o4755, 8192)


@needs("rsync")
def test_rsync_copies_and_finds_nothing_more_to_do(shared_cluster, d, tree):
    c = shared_cluster
    c.run(f"rsync -aX {tree}/ {d}/tree/", A, timeout=60)
    assert c.call(B, described, f"{d}/tree") == described(tree)
    out = c.run(f"rsync -aXi {tree}/ {d}/tree/", C, timeout=60).stdout
    assert [line for line in out.splitlines() if not line.startswith(".d")] == []
    c.run(f"rsync -a --delete {tree}/sub/ {d}/tree/", B, timeout=60)
    assert c.listdir(A, f"{d}/tree") == ["deeper", "script"]


# ---- editing files ----

@needs("vim")
@pytest.mark.sanitizer
def test_vim_saves(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/conf", "one\ntwo\nthree\n")
    c.call(A, lambda path: os.chmod(path, 0o640), f"{d}/conf")
    for node, command, expected in [
        (B, "%s/two/2/", b"one\n2\nthree\n"), (C, "g/one/d", b"2\nthree\n"), (A, "$d", b"2\n"),
    ]:
        c.run(f"vim -es -u NONE -i NONE -c '{command}' -c wq {d}/conf", node, timeout=30)
        for i in c.nodes():
            assert c.read(i, f"{d}/conf") == expected
    assert c.stat(B, f"{d}/conf").st_mode & 0o777 == 0o640
    assert c.listdir(A, d) == ["conf"]


@needs("vim")
@pytest.mark.parametrize("settings", ["set backupcopy=yes writebackup", "set backupcopy=no writebackup", "set nowritebackup"])
def test_vim_saves_in_each_of_its_ways(shared_cluster, d, settings):
    c = shared_cluster
    c.write(A, f"{d}/conf", "value = old\n")
    c.run(f"vim -es -u NONE -i NONE -c '{settings}' -c 's/old/new/' -c wq {d}/conf", B, timeout=30)
    assert c.read(C, f"{d}/conf") == b"value = new\n"
    assert c.listdir(A, d) == ["conf"]
    c.run(f"vim -es -u NONE -i NONE -c '{settings}' -c 'normal ifirst' -c wq {d}/new", B, timeout=30)
    assert c.read(C, f"{d}/new") == b"first\n"


@pytest.mark.sanitizer
def test_sed_in_place(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/conf", "port=1\n")
    created = c.xattr(A, f"{d}/conf", "user.keel.create_revision")
    for n in range(2, 8):
        c.run(f"sed -i 's/port=.*/port={n}/' {d}/conf", n % 3 + 1)
        assert c.read((n + 1) % 3 + 1, f"{d}/conf") == f"port={n}\n".encode()
    assert version(c, f"{d}/conf") == 7
    assert c.xattr(C, f"{d}/conf", "user.keel.create_revision") == created
    c.run(f"sed -i.bak 's/7/8/' {d}/conf", A)
    assert (c.read(B, f"{d}/conf"), c.read(B, f"{d}/conf.bak")) == (b"port=8\n", b"port=7\n")


@needs("jq")
def test_jq_through_a_temporary_file(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/j", '{"n": 0}')
    for n in range(1, 6):
        c.run(f"jq '.n += 1' {d}/j > {d}/j.tmp && mv {d}/j.tmp {d}/j", n % 3 + 1)
    assert c.run(f"jq .n {d}/j", B).stdout == "5\n"
    assert version(c, f"{d}/j") == 6


@needs("perl")
def test_perl_in_place(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/conf", "a=1\nb=2\n")
    c.run(f"perl -pi -e 's/b=2/b=3/' {d}/conf", B)
    assert c.read(C, f"{d}/conf") == b"a=1\nb=3\n"


def test_sort_and_patch_onto_their_own_input(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/f", "c\na\nb\n")
    c.run(f"sort -o {d}/f {d}/f", B)
    assert c.read(C, f"{d}/f") == b"a\nb\nc\n"
    if shutil.which("patch"):
        c.run(f"printf -- '--- f\\n+++ f\\n@@ -1,3 +1,3 @@\\n a\\n-b\\n+B\\n c\\n' | patch {d}/f", A)
        assert c.read(C, f"{d}/f") == b"a\nB\nc\n"


# ---- databases and repositories ----

@needs("git")
def test_git_works_and_another_node_goes_on(shared_cluster, d):
    c = shared_cluster
    git = "git -c user.name=t -c user.email=t@t -c safe.directory='*'"
    c.run(f"cd {d} && {git} init -q repo && cd repo && mkdir src && seq 1000 > src/a && echo b > b"
          f" && {git} add . && {git} commit -qm first", A, timeout=60)
    c.run(f"cd {d}/repo && {git} fsck --strict && {git} status --porcelain && echo more >> b && {git} commit -qam second", B, timeout=60)
    log = c.run(f"cd {d}/repo && {git} log --format=%s", C).stdout.split()
    assert log == ["second", "first"]
    assert c.run(f"cd {d}/repo && {git} status --porcelain", A).stdout == ""
    c.run(f"cd {d}/repo && {git} checkout -q -b side HEAD~1 && echo s > s && {git} add s && {git} commit -qm side"
          f" && {git} merge -q --no-edit master 2>/dev/null || {git} merge -q --no-edit main", C, timeout=60)
    assert c.read(A, f"{d}/repo/b") == b"b\nmore\n"
    c.run(f"cd {d} && {git} clone -q repo clone && cd clone && {git} fsck --strict && {git} gc -q && {git} fsck --strict", A, timeout=90)
    assert c.read(B, f"{d}/clone/s") == b"s\n"
    assert "error" not in c.run(f"cd {d}/clone && {git} fsck --full 2>&1", C, timeout=60).stdout


SQL = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=30)
db.execute("create table if not exists t (node integer, n integer)")
for n in range(15):
    db.execute("insert into t values (?, ?)", (int(sys.argv[2]), n))
    db.commit()
db.close()
"""


def test_sqlite_in_python_on_one_node_after_the_other(shared_cluster, d, tmp_path):
    c = shared_cluster
    (tmp_path / "fill.py").write_text(SQL)
    for i in c.nodes():
        c.run([sys.executable, str(tmp_path / "fill.py"), c.path(i, f"{d}/db"), str(i)], timeout=60)

    def counted(path):
        import sqlite3
        db = sqlite3.connect(path)
        return db.execute("select count(*), count(distinct node) from t").fetchone(), db.execute("pragma integrity_check").fetchone()

    for i in c.nodes():
        assert c.call(i, counted, f"{d}/db") == ((45, 3), ("ok",))
    assert c.listdir(A, d) == ["db"]


@needs("sqlite3")
def test_processes_of_one_node_share_a_sqlite_database(shared_cluster, d):
    c = shared_cluster
    c.run(f"sqlite3 {d}/db 'create table t (n)'", A)
    in_parallel([lambda: c.run(
        f"for n in $(seq 10); do sqlite3 -cmd '.timeout 30000' {d}/db \"insert into t values ($n)\"; done", A, timeout=90)
        for _ in range(3)], bound=100)
    assert c.run(f"sqlite3 {d}/db 'select count(*), sum(n) from t; pragma integrity_check'", B).stdout.split() == ["30|165", "ok"]


def test_dbm_and_shelve_of_python(shared_cluster, d):
    c = shared_cluster

    def fill(path):
        import dbm.dumb
        with dbm.dumb.open(path, "c") as db:
            for n in range(30):
                db[str(n)] = str(n * n)

    def look(path):
        import dbm.dumb
        with dbm.dumb.open(path, "r") as db:
            return {int(k): int(v) for k, v in db.items()}

    c.call(A, fill, f"{d}/db", timeout=30)
    assert c.call(B, look, f"{d}/db") == {n: n * n for n in range(30)}


# ---- small tools ----

def test_pythons_tempfile_and_atomic_replacement(shared_cluster, d):
    c = shared_cluster

    def save(path):
        for n in range(10):
            with tempfile.NamedTemporaryFile("w", dir=path, delete=False) as file:
                file.write(f"{n}\n" * 1000)
                file.flush()
                os.fsync(file.fileno())
            os.replace(file.name, os.path.join(path, "f"))
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"nameless" * 5000)
            file.seek(0)
            assert file.read() == b"nameless" * 5000
        with tempfile.TemporaryDirectory(dir=path) as inner:
            open(os.path.join(inner, "x"), "w").close()

    c.call(A, save, d, timeout=30)
    assert c.read(B, f"{d}/f") == b"9\n" * 1000
    assert version(c, f"{d}/f", C) == 10
    assert c.listdir(C, d) == ["f"]


def test_ln_sfn_switches_a_link_with_one_revision_each(shared_cluster, d):
    c = shared_cluster
    c.run(f"mkdir {d}/v1 {d}/v2 && echo 1 > {d}/v1/f && echo 2 > {d}/v2/f && ln -s v1 {d}/current", A)
    assert c.read(B, f"{d}/current/f") == b"1\n"
    c.run(f"ln -sfn v2 {d}/current", B)
    assert c.read(C, f"{d}/current/f") == b"2\n"
    assert b"\nversion: 2\n" in c.read(C, f"{d}/current@stat")
    assert c.listdir(A, d) == ["current", "v1", "v2"]


def test_find_grep_du_and_rm_see_the_same_tree(shared_cluster, d, tree):
    c = shared_cluster
    c.run(f"cp -a {tree} {d}/tree", A, timeout=60)
    names = sorted(c.run(f"cd {tree} && find . -printf '%y %p %s\\n' | grep -v ^d", None).stdout.splitlines())
    for i in c.nodes():
        assert sorted(c.run(f"cd {d}/tree && find . -printf '%y %p %s\\n' | grep -v ^d", i).stdout.splitlines()) == names
        assert c.run(f"cd {d}/tree && grep -rl small .", i).stdout == "./small\n"
        assert int(c.run(f"du -s --apparent-size -B1 {d}/tree/sub/deeper/large", i).stdout.split()[0]) == 300_001
    c.run(f"find {d}/tree -name large -delete", B)
    assert c.listdir(C, f"{d}/tree/sub/deeper") == []
    c.run(f"rm -rf {d}/tree", C)
    assert c.listdir(A, d) == []


def test_rm_rf_on_two_nodes_at_once_leaves_nothing(shared_cluster, d):
    c = shared_cluster
    c.run(f"mkdir -p {d}/t/{{a,b,c}}/{{x,y}} && touch {d}/t/{{a,b,c}}/{{x,y}}/{{1,2,3,4}}", A, timeout=60)
    in_parallel([lambda i=i: c.run(f"rm -rf {d}/t", i, timeout=60, check=False) for i in (A, B)])
    c.run(f"rm -rf {d}/t", C)
    assert c.listdir(B, d) == []


def test_install_mktemp_touch_truncate_dd_and_split(shared_cluster, d, tmp_path):
    c = shared_cluster
    (tmp_path / "src").write_bytes(os.urandom(200_000))
    c.run(f"install -m 750 -o 7 -g 8 {tmp_path}/src {d}/installed", A)
    s = c.stat(B, f"{d}/installed")
    assert (s.st_mode & 0o7777, s.st_uid, s.st_gid) == (0o750, 7, 8)
    assert c.read(C, f"{d}/installed") == (tmp_path / "src").read_bytes()
    name = c.run(f"mktemp {d}/tmp.XXXXXX", B).stdout.strip()
    assert c.stat(A, name).st_mode & 0o777 == 0o600
    c.run(f"touch -d @1000 {d}/t && truncate -s 5000 {d}/t && touch -r {d}/installed {d}/t", A)
    assert c.stat(B, f"{d}/t").st_size == 5000
    assert c.stat(B, f"{d}/t").st_mtime_ns == c.stat(B, f"{d}/installed").st_mtime_ns
    c.run(f"printf XY | dd of={d}/t bs=1 seek=100 conv=notrunc status=none", C)
    assert c.read(A, f"{d}/t") == bytes(100) + b"XY" + bytes(4898)
    c.run(f"cd {d} && split -b 50000 {tmp_path}/src part. && cat part.* | cmp - {tmp_path}/src", B)
    assert len([n for n in c.listdir(C, d) if n.startswith("part.")]) == 4


def test_chmod_and_chown_of_a_whole_tree(shared_cluster, d, tree):
    c = shared_cluster
    c.run(f"cp -r {tree} {d}/tree && chmod -R u+rwX,go-rwx {d}/tree && chown -hR 11:12 {d}/tree", A, timeout=60)
    for line in c.run(f"find {d}/tree -printf '%y %m %U %G\\n'", B).stdout.splitlines():
        kind, mode, uid, gid = line.split()
        assert (uid, gid) == ("11", "12")
        assert kind == "l" or mode in ("700", "600")


@needs("gcc")
def test_a_program_is_compiled_on_one_node_and_run_on_another(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/p.c", '#include <stdio.h>\nint main(void) { puts("compiled"); return 0; }\n')
    c.run(f"cd {d} && gcc -o p p.c", B, timeout=60)
    assert c.run(f"{d}/p", C).stdout == "compiled\n"


def test_a_shell_history_of_append_and_rotation(shared_cluster, d):
    c = shared_cluster
    for n in range(9):
        c.run(f"echo line {n} >> {d}/log; [ $(wc -l < {d}/log) -lt 4 ] || mv {d}/log {d}/log.{n}", n % 3 + 1)
    rest = c.run(f"cat {d}/log.3 {d}/log.7 {d}/log", B).stdout
    assert rest == "".join(f"line {n}\n" for n in range(9))


def test_flock_guards_a_script_on_one_node(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/n", "0\n")
    script = f"for k in 1 2 3 4 5; do flock {d}/lock sh -c 'n=$(cat {d}/n); echo $((n + 1)) > {d}/n'; done"
    in_parallel([lambda: c.run(script, A, timeout=60) for _ in range(4)])
    assert c.read(B, f"{d}/n") == b"20\n"


def test_mkdir_guards_a_script_on_all_nodes(shared_cluster, d):
    c = shared_cluster
    c.write(A, f"{d}/n", "0\n")
    script = (f"for k in 1 2 3 4 5; do until mkdir {d}/lock 2>/dev/null; do sleep 0.005; done;"
              f" n=$(cat {d}/n); echo $((n + 1)) > {d}/n; rmdir {d}/lock; done")
    in_parallel([lambda i=i: c.run(script, i, timeout=60) for i in c.nodes()])
    assert c.read(B, f"{d}/n") == b"15\n"


def test_files_go_to_the_mount_through_pipes_and_redirections(shared_cluster, d):
    c = shared_cluster
    c.run(f"""cat > {d}/here <<'END'
line one
line two
END
exec 5<> {d}/rw; echo written >&5; exec 5>&-
{{ echo a; echo b >&2; }} > {d}/out 2> {d}/err
printf 'x%.0s' $(seq 10000) | tr x y | tee {d}/t1 {d}/t2 > /dev/null
set -o noclobber; echo no > {d}/here || echo refused > {d}/new""", A)
    assert c.read(B, f"{d}/here") == b"line one\nline two\n"
    assert (c.read(B, f"{d}/rw"), c.read(B, f"{d}/out"), c.read(B, f"{d}/err")) == (b"written\n", b"a\n", b"b\n")
    assert c.read(C, f"{d}/t1") == c.read(C, f"{d}/t2") == b"y" * 10000
    assert c.read(C, f"{d}/new") == b"refused\n"


def test_timeout_and_a_signal_do_no_harm_to_an_appended_log(shared_cluster, d):
    c = shared_cluster
    c.run(f"timeout -s INT 1 sh -c 'while :; do echo line >> {d}/log; done'", A, check=False)
    lines = c.read(B, f"{d}/log").decode().splitlines()
    assert lines and set(lines) == {"line"}
    assert bounded(lambda: os.path.getsize(c.path(C, f"{d}/log"))) == 5 * len(lines)
