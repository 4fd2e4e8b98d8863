"""Injects faults into small studies and counts how the commands of lengthgen take them.

    python scripts/soak.py [--faults 1000] [--only KIND ...] [--seed 1] [--jobs 2] [--table FILE]

A tenth are kills of a study at moments that can be seen from outside (soak_kills.py), the others
faults of a study at rest or kills at start-up (soak_faults.py). A command must show what it shows
of an undisturbed study, or less of it, or end with exit code 2 and one line. Exit code 0 if each
did, and none was silent about a change, hung or ended with a traceback.
"""

import argparse
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import soak_faults
import soak_forks
import soak_kills
import soak_study
from soak_faults import KINDS, Tried
from soak_study import POINTS, Judged

KILLS = "kill at a visible moment"
COLUMNS = {  # by the verdicts of soak_study.Judged
    "identical": "same result",
    "less": "named, or less shown",
    "refused": "refused in one line",
    "silent": "silent",
    "hang": "hangs",
    "traceback": "tracebacks",
}
SHOWN_EVERY_SECONDS = 60
BAD = ("silent", "hang", "traceback")


def numbers_of(kinds: Sequence[str], n: int) -> dict[str, int]:
    """Returns how many faults of each kind make n, at least one of each."""
    shares = {kind: 100 if kind == KILLS else KINDS[kind].share for kind in kinds}
    whole = sum(shares.values())
    return {kind: max(1, round(n * share / whole)) for kind, share in shares.items()}


def kills(root: Path, twin: soak_kills.Twin, number: int, *, n: int, seed: int) -> list[Tried]:
    """Runs a round of kills, and returns a fault for each."""
    folder, schemes = root / f"round-{number}", soak_kills.SCHEMES
    try:
        counts = soak_kills.kill_round(folder, twin, kills=n, seed=seed + number, schemes=schemes)
    except soak_kills.Failed as failed:  # the folder stays
        return [Tried(KILLS, f"round {number}", Judged("silent", f"{failed}; all is in {folder}"))]
    shutil.rmtree(folder)
    return [Tried(KILLS, phase, Judged("identical")) for phase in counts.elements()]


def jobs_of(
    root: Path, numbers: dict[str, int], *, seed: int, runs: Sequence[str]
) -> Iterator[Callable[[], list[Tried]]]:
    """Prepares the studies, and returns what is to be called for all faults."""
    wanted = numbers.pop(KILLS, 0)
    if numbers:
        study = soak_study.prepare(root / "at-rest", points=runs)
        for kind, n in numbers.items():
            for number in range(n):
                folder = root / f"{list(KINDS).index(kind)}-{number}"
                yield partial(at_rest_fault, study, kind, number, seed=seed, folder=folder)
    if wanted:
        twin = soak_kills.twin(root / "kills-twin", soak_kills.SCHEMES)
        for number, done in enumerate(range(0, wanted, soak_kills.IN_A_ROUND)):
            n = min(soak_kills.IN_A_ROUND, wanted - done)
            yield partial(kills, root, twin, number, n=n, seed=seed)


def at_rest_fault(
    study: soak_study.Study, kind: str, number: int, *, seed: int, folder: Path
) -> list[Tried]:
    return [soak_faults.fault(study, kind, number, seed=seed, folder=folder)]


def call(job: Callable[[], list[Tried]]) -> list[Tried]:
    return job()


def soak(
    todo: Sequence[Callable[[], list[Tried]]], *, jobs: int, show: Callable[[list[Tried]], None]
) -> list[Tried]:
    """Injects all faults, prints those that are taken badly, and returns how each was taken."""
    tried: list[Tried] = []
    shown = time.monotonic()
    with get_context("fork").Pool(jobs) as pool:
        for found in pool.imap_unordered(call, todo):
            tried += found
            for kind, what, judged in found:
                if judged.verdict in BAD:
                    print(f"{judged.verdict}: {kind}: {what}: {judged.why}", flush=True)
            if time.monotonic() > shown + SHOWN_EVERY_SECONDS:
                shown = time.monotonic()
                show(tried)
        pool.close()
        pool.join()  # so that their CPU time is known
    return tried


def table(tried: Sequence[Tried]) -> str:
    """Returns how faults of each kind were taken, as Markdown."""
    counts = Counter((one.kind, one.judged.verdict) for one in tried)
    kinds = [kind for kind in (KILLS, *KINDS) if any(one.kind == kind for one in tried)]
    lines = [["fault", "tried", *COLUMNS.values()], ["---", *["--:"] * (len(COLUMNS) + 1)]]
    for name, of in (*((kind, [kind]) for kind in kinds), ("all", kinds)):
        cells = [sum(counts[kind, verdict] for kind in of) for verdict in COLUMNS]
        lines.append([name, str(sum(cells)), *map(str, cells)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def heading(seconds: float) -> str:
    """Returns the command, commit and times of this table."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in spent)
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return (
        f"`python scripts/soak.py {' '.join(sys.argv[1:])}` at commit {commit}: "
        f"{seconds / 60:.0f} minutes, {cpu / 60:.0f} minutes of CPU, {os.cpu_count()} cores "
        f"with a load of {os.getloadavg()[2]:.1f}.\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--only", nargs="+", choices=[KILLS, *KINDS], default=[KILLS, *KINDS])
    parser.add_argument(
        "--without-processes", action="store_true", help="no kills, which take most of the time"
    )
    parser.add_argument("--runs", nargs="+", choices=POINTS, default=list(POINTS), help="at rest")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--root", type=Path, help="a folder to make; a temporary one by default")
    parser.add_argument("--table", type=Path, help="a file to write the table to")
    given = parser.parse_args()
    root: Path = given.root or Path(tempfile.mkdtemp(prefix="soak-"))
    began = time.monotonic()
    soak_forks.preload()
    of_processes = (KILLS, "kill at start-up") if given.without_processes else ()
    of_root = ("full disk",) if os.geteuid() else ()  # nobody else may mount one
    kinds = [kind for kind in given.only if kind not in (*of_processes, *of_root)]
    numbers = numbers_of(kinds, given.faults)
    n_faults = sum(numbers.values())

    def show(tried: list[Tried]) -> None:
        seconds = time.monotonic() - began
        print(f"{len(tried)} of {n_faults} faults in {seconds:.0f} s", flush=True)
        if given.table:
            given.table.write_text(f"{heading(seconds)}\n{table(tried)}")

    todo = list(jobs_of(root.absolute(), numbers, seed=given.seed, runs=given.runs))
    random.Random(given.seed).shuffle(todo)
    tried = soak(todo, jobs=given.jobs, show=show)
    show(tried)
    print(table(tried))
    bad = sum(one.judged.verdict in BAD for one in tried)
    if not bad:
        shutil.rmtree(root)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
