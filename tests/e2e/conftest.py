"""Fixtures: clusters that are up, and are taken down and looked over afterwards."""

import itertools
import os
import re
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))

import hands  # noqa: E402
import keel  # noqa: E402


def _started(nodes, flags):
    if not os.access(keel.BINARY, os.X_OK):
        pytest.fail(f"there is no {keel.BINARY}: run tools/build first, or set KEELFS", pytrace=False)
    cluster = keel.Cluster(nodes, flags)
    try:
        return cluster.up()
    except BaseException:
        cluster.close()
        raise


@pytest.fixture
def cluster(request):
    """Three nodes for this test alone; @pytest.mark.cluster(nodes=…, flags=…) for others."""
    mark = request.node.get_closest_marker("cluster")
    options = mark.kwargs if mark else {}
    cluster = _started(options.get("nodes", 3), options.get("flags", ()))
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def shared_cluster():
    """Three nodes for all tests of a file, for those that neither kill nor cut: use names of your own."""
    cluster = _started(3, ())
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def shared_node():
    """The same with one node."""
    cluster = _started(1, ())
    yield cluster
    cluster.close()


@pytest.fixture
def make_cluster():
    """make_cluster(nodes=3, flags=()): as many as a test wants."""
    made = []

    def make(nodes=3, flags=()):
        made.append(_started(nodes, flags))
        return made[-1]

    make.made = made
    yield make
    errors = []
    for cluster in made:
        try:
            cluster.close()
        except AssertionError as error:
            errors.append(str(error))
    assert not errors, "\n".join(errors)


@pytest.fixture
def hand():
    """hand(): a process that does on a mount what the test tells it (hands.py)."""
    made = []

    def make():
        made.append(hands.Hand())
        return made[-1]

    yield make
    for one in made:
        one.drop()


_places = itertools.count()


@pytest.fixture
def d(shared_cluster, request):
    """A directory for this test in the shared cluster, by its name below the mounts; everybody may write in it."""
    name = f"{next(_places)}-" + re.sub(r"[^A-Za-z0-9_]", "-", request.node.name)[:150]
    shared_cluster.mkdir(1, name)
    shared_cluster.call(1, lambda path: os.chmod(path, 0o777), name)
    return name


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failure shows the end of each node's log."""
    outcome = yield
    report = outcome.get_result()
    if not report.failed:
        return
    for value in getattr(item, "funcargs", {}).values():
        for cluster in getattr(value, "made", [value]):
            if isinstance(cluster, keel.Cluster):
                for i in cluster.all_nodes():
                    tail = "\n".join(cluster.log(i).splitlines()[-30:])
                    report.sections.append((f"end of n{i}'s log", tail))
