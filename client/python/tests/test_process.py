"""What the package does to a process: nothing at import, nothing that a fork could hang on, nothing that Ctrl-C cannot end."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HANG_SECONDS = 60
IMPORT_BYTES_MAX = 10 << 20


def python(*arguments, environment=None):
    """A fresh interpreter, with a watchdog."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_import_costs_nothing():
    """`import framecache`: under 10 MiB, no thread, no socket, no file, and neither numpy nor torch."""
    script = """
import os, sys
def state():
    pss = next(int(l.split()[1]) for l in open("/proc/self/smaps_rollup") if l.startswith("Pss:"))
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    open_files = sorted(os.readlink(link) for link in links if os.path.exists(link))
    return pss * 1024, open_files, len(os.listdir("/proc/self/task"))
state()
before = state()
import framecache
framecache.Client("127.0.0.1:1")
after = state()
assert before[1:] == after[1:] == (before[1], 1), (before, after)
assert not {"numpy", "torch", "PIL"} & set(sys.modules)
print(after[0] - before[0])
"""
    added = int(python("-c", script))
    print(f"import adds {added / 2**20:.1f} MiB")
    assert added < IMPORT_BYTES_MAX


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_children_read_as_their_parent(cluster, method, when):
    """Children of every kind read, with an inherited client and with one of their own, also when the parent has read before."""
    children = 10 if method == "fork" else 2
    uris = [cluster.uri(f"mix/{index}.jpg") for index in range(4)]
    assert "done" in python(HERE / "forks.py", method, when, children, *uris, environment=cluster.environment())


def test_forks_in_the_middle_of_reads(cluster):
    """Forked again and again while other threads of the parent read: no child finds a lock that nobody will open."""
    uris = [cluster.uri(f"mix/{index}.jpg") for index in range(4)]
    assert "done" in python(HERE / "forks.py", "fork", "busy", 40, *uris, environment=cluster.environment())


@pytest.mark.parametrize("call", ["client.read('s3://abc/x')", "client.images(['s3://abc/x'] * 9, 'image?size=9x9')"])
def test_interrupts_are_answered(call):
    """A signal's exception ends a call that waits for a node that never answers, long before the deadline."""
    from conftest import ROOT

    script = f"""
import signal, socket, time
import framecache as fc
silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
silent.bind(("127.0.0.1", 0))
client = fc.Client("127.0.0.1:%d" % silent.getsockname()[1], ca={str(ROOT / "client/tests/ca.pem")!r}, timeout=50)
raised = []
def interrupt(*_):
    raised.append(time.monotonic())
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
for _ in range(3):
    begun = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        {call}
    except KeyboardInterrupt:
        print(time.monotonic() - begun - 0.3)
    else:
        raise SystemExit("no interrupt")
"""
    waits = [float(line) for line in python("-c", script).split()]
    print(f"answered after {max(waits):.3f} s")
    # 0.2 s is promised, and seen on an idle machine; a busy one is given more, far from the 50 s of the deadline.
    assert len(waits) == 3 and max(waits) < 2


def test_deadlines_are_kept():
    """A silent node costs the deadline, not more."""
    from conftest import ROOT

    script = f"""
import socket, time
import framecache as fc
silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
silent.bind(("127.0.0.1", 0))
client = fc.Client("127.0.0.1:%d" % silent.getsockname()[1], ca={str(ROOT / "client/tests/ca.pem")!r})
for call in (
    lambda: client.read("s3://abc/x", timeout=0.5),
    lambda: client.images(["s3://abc/x"], timeout=0.5),
    lambda: client.nodes(timeout=0.5),
):
    try:
        call()
    except (TimeoutError, ConnectionError) as error:
        assert isinstance(error, fc.FramecacheError)
    else:
        raise SystemExit("no error")
print("done")
"""
    assert "done" in python("-c", script)
