"""Interrupts a sweep of 4 schemes x 2 seeds three times, continues it, and compares it with a twin.

Interruptions: Ctrl-C, kill -9 of the sweep and of all its runs, a full disk. The twin is not
disturbed. Weights, rows of training and evaluation, and the table must be the same. The full disk
is a tmpfs, which takes root to mount; without root that interruption is left out, which is said.

    python scripts/interrupted_sweep.py [--folder DIR] [KEY=VALUE ...]
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCHEMES, SEEDS = "rope,alibi,nope,kerple", "1,2"
SETTINGS = [
    *("train.tokens=120000", "train.checkpoint_every=5", "train.precision=fp32"),
    *(
        "corpus=stdlib",
        "corpus.tokenizer=bytes",
        "eval.lengths=[512,1024,2048]",
        "eval.endpoints=8",
    ),
    *("eval.reach=2048", "runtime.wandb=off", "runtime.device=cpu", "runtime.log_every=2"),
]
TIMING = {"train/tokens_per_s", "train/peak_mib", "crc32"}  # what may differ between twins
MIB = 2**20


def main() -> None:
    arguments = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    arguments.add_argument("--folder", type=Path, default=Path("runs/interrupted"))
    arguments.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    asked = arguments.parse_args()
    # A shell's background job ignores Ctrl-C, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = asked.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    words = [f"scheme={SCHEMES}", f"seed={SEEDS}", *SETTINGS, f"runtime.cache={folder}/cache"]
    words += asked.overrides
    say("undisturbed twin")
    ended(start([*words, f"runtime.root={folder}/undisturbed"], folder), expected=0)
    with small_disk(folder / "disturbed") as fill:
        sweep = [*words, f"runtime.root={folder}/disturbed"]
        disturb(
            sweep, folder, "Ctrl-C", 10, lambda running: running.send_signal(signal.SIGINT), 130
        )
        disturb(sweep, folder, "kill -9 of everything", 25, kill_all, -signal.SIGKILL)
        if fill is None:
            say("full disk: left out, since a tmpfs cannot be mounted here")
        else:
            full = fill / "filler"
            disturb(sweep, folder, "full disk", 25, lambda _: fill_up(full), 1)
            full.unlink()
        say("continued to its end")
        ended(start(sweep, folder), expected=0)
        compare(folder / "undisturbed", folder / "disturbed", folder)


def disturb(
    words: list[str],
    folder: Path,
    name: str,
    rows: int,
    how: Callable[[subprocess.Popen[bytes]], None],
    expected: int,
) -> None:
    """Starts the sweep, disturbs it when its runs have `rows` rows more in all, and waits."""
    before = rows_written(folder / "disturbed")
    running = start(words, folder)
    while rows_written(folder / "disturbed") < before + rows and running.poll() is None:
        time.sleep(0.2)
    say(f"{name}, after {rows_written(folder / 'disturbed')} rows of training")
    how(running)
    ended(running, expected=expected)


def start(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "console.txt").open("ab") as console:
        command = [sys.executable, "-m", "lengthgen", "sweep", *words]
        return subprocess.Popen(command, stdout=console, stderr=console)


def ended(running: subprocess.Popen[bytes], *, expected: int) -> None:
    code = running.wait()
    say(f"  the sweep ended with exit code {code}")
    if code != expected:
        sys.exit(f"FAIL: {expected} was expected; see console.txt")


def kill_all(running: subprocess.Popen[bytes]) -> None:
    """Kills the sweep first, so that it sees nothing, then its runs."""
    runs = [int(stat.parent.name) for stat in stats() if parent(stat) == running.pid]
    for pid in (running.pid, *runs):
        os.kill(pid, signal.SIGKILL)


def stats() -> Iterator[Path]:
    yield from Path("/proc").glob("[0-9]*/stat")


def parent(stat: Path) -> int | None:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return None


def fill_up(file: Path) -> None:
    with file.open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(MIB // 4))
        except OSError:
            return


@contextmanager
def small_disk(folder: Path) -> Generator[Path | None]:
    """Mounts a tmpfs of 400 MiB and yields it, or None where that is not allowed."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def rows_written(root: Path) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in root.glob("*/train.jsonl"))


def compare(one: Path, other: Path, folder: Path) -> None:
    names = sorted(path.parent.name for path in one.glob("*/config.yaml"))
    same = True
    for name in names:
        facts = [digest(root / name) for root in (one, other)]
        same &= facts[0] == facts[1]
        say(f"  {name}: {'the same' if facts[0] == facts[1] else 'NOT the same'}")
    tables = [table(root, folder / f"report-{root.name}") for root in (one, other)]
    print(tables[1])
    same &= tables[0] == tables[1]
    say(f"{'PASS' if same else 'FAIL'}: weights, rows and table of {len(names)} runs")
    sys.exit(0 if same else 1)


def digest(run_dir: Path) -> list[str]:
    """Returns what must be the same: of the last weights, of the rows without their timing."""
    last = sorted((run_dir / "checkpoints").glob("step-*"))[-1]
    weights = hashlib.sha256((last / "model.safetensors").read_bytes()).hexdigest()
    found = [weights]
    for log in ("train.jsonl", "eval.jsonl"):
        rows: list[dict[str, Any]] = [
            json.loads(line) for line in (run_dir / log).read_text().splitlines()
        ]
        kept = [{k: v for k, v in row.items() if k not in TIMING} for row in rows]
        found.append(json.dumps(sorted(kept, key=json.dumps)))
    return found


def table(root: Path, out: Path) -> str:
    command = [sys.executable, "-m", "lengthgen", "report", f"runtime.root={root}", "--out", out]
    subprocess.run(command, check=True, capture_output=True)
    return (out / "table.md").read_text()


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
