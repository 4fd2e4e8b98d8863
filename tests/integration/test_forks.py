"""A program in a fork is started, stopped and ended as one in an interpreter of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forks import Forked, run

pytestmark = pytest.mark.slow

SEEN = """
import atexit, os, signal, sys, threading
atexit.register(print, "the end")
kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)
print([str(signal.getsignal(kind)).split(" at ")[0] for kind in kinds])
print(sys.argv, os.getcwd(), __name__, sys.stdin.read(), sorted(os.environ))
print(os.getsid(0) == os.getpid(), len(os.listdir("/proc/self/fd")), threading.active_count())
print("error", file=sys.stderr)
threading.Thread(target=lambda: print("a thread")).start()
sys.exit(3)
"""


def started(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Returns how a new interpreter ends."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=os.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    [
        ("-c", SEEN, "a", "b c"),
        ("-c", "1 / 0"),
        ("-c", "import os; os.abort()"),
        ("-m", "lengthgen", "list", "schemes"),
        ("-m", "lengthgen", "train", "scheme=rpoe"),
    ],
    ids=str,
)
def test_a_program_sees_and_says_what_it_does_in_an_interpreter(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    forked, alone = run(*words, cwd=tmp_path), started(*words, cwd=tmp_path)
    assert (forked.returncode, forked.stdout) == (alone.returncode, alone.stdout)
    assert forked.stderr.splitlines()[-1:] == alone.stderr.splitlines()[-1:]


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=str)
def test_a_signal_ends_a_program(kind: signal.Signals, tmp_path: Path) -> None:
    code = "import pathlib, time; pathlib.Path('begun').touch(); time.sleep(60)"
    forked = Forked("-c", code, cwd=tmp_path)
    assert os.getsid(forked.pid) == os.getpgid(forked.pid) == forked.pid
    while not (tmp_path / "begun").exists():
        assert forked.poll() is None
        time.sleep(0.01)
    with pytest.raises(subprocess.TimeoutExpired):
        forked.wait(timeout=0.01)
    os.killpg(forked.pid, kind)
    out, err = forked.communicate(timeout=60)
    assert (forked.returncode, out) == (-kind, "")
    assert ("KeyboardInterrupt" in err) == (kind == signal.SIGINT)


def test_stderr_goes_where_it_is_sent(tmp_path: Path) -> None:
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr)"
    with (tmp_path / "stderr").open("w") as file:
        assert Forked("-c", code, stderr=file).communicate() == ("out\n", "")
    assert (tmp_path / "stderr").read_text() == "err\n"
    assert Forked("-c", code, stderr=subprocess.STDOUT).communicate() == ("out\nerr\n", "")


def test_an_environment_replaces_the_tests_own(tmp_path: Path) -> None:
    code = "import os, sys; print(dict(os.environ), sys.path[1])"
    env = {"A": "1", "PYTHONPATH": str(tmp_path)}
    assert run("-c", code, env=env).stdout == f"{env} {tmp_path}\n"


STARTS = """
import os, subprocess, sys
for stderr in (None, subprocess.STDOUT):
    words = [sys.executable, "-u", "-m", "seen", "a b"]
    env = {**os.environ, "A": "1"}
    one = subprocess.Popen(words, env=env, stderr=stderr, start_new_session=True)
    assert os.getsid(one.pid) == one.pid
    print(one.wait(), file=sys.stderr, flush=True)
asks = [sys.executable, "-m", "asks"]
print(subprocess.run(asks, input="given", capture_output=True, text=True, check=False).stdout)
one = subprocess.Popen([sys.executable, "-m", "waits"], start_new_session=True)
assert one.poll() is None
one.terminate()
print(one.wait())
"""
STARTED = """
import os, sys
print(sys.argv[1:], os.environ["A"], len(os.listdir("/proc/self/fd")), flush=True)
print("error", file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere an interpreter is started")
def test_a_program_that_a_program_starts_is_a_fork_that_sees_and_says_the_same(
    tmp_path: Path,
) -> None:
    (tmp_path / "seen.py").write_text(STARTED)
    (tmp_path / "asks.py").write_text("import sys; print(sys.stdin.read(), sys.argv[1:])")
    (tmp_path / "waits.py").write_text("import time; time.sleep(60)")
    forked, alone = run("-c", STARTS, cwd=tmp_path), started("-c", STARTS, cwd=tmp_path)
    assert (forked.stdout, forked.stderr) == (alone.stdout, alone.stderr)
    (tmp_path / "seen.py").write_text("import sys; sys.exit('torch' in sys.modules)")
    assert run("-c", STARTS, cwd=tmp_path).stderr == "1\n1\n"
