"""Numbers of a fixed set of commands, to compare two versions of the code bit for bit.

    python scripts/freeze_numbers.py write before.json    # with the code of before
    python scripts/freeze_numbers.py write after.json     # with the code of after
    python scripts/freeze_numbers.py compare before.json after.json
    python scripts/freeze_numbers.py old FOLDER after.json

`write` trains every scheme and two tasks on the CPU, evaluates, probes, resumes, generates, exports
and reports in a temporary folder (--keep FOLDER keeps it), and records hashes of weights and the
values of rows: some minutes. `old` reports, exports and generates with runs that an earlier version
left in such a folder, and compares with what that version recorded. Equal bits need the same
machine and the same torch.
"""

import argparse
import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save

ROOT = Path(__file__).resolve().parents[1]
TINY = [
    *("model.d_model=32", "model.n_layers=2", "model.n_heads=4", "model.d_ff=64"),
    *("model.init_std=0.2", "train.length=16", "train.batch_tokens=128", "train.tokens=1024"),
    *("train.checkpoint_every=3", "train.precision=fp32", "train.warmup_fraction=0.05"),
    *("train.lr=4e-3", "train.weight_decay=0.1", "eval.reference_variants=[]"),
    *("runtime.wandb=off", "runtime.device=cpu", "runtime.threads=1"),
]
TEXT = [
    *("eval.lengths=[16,32,64]", "eval.targets=8", "eval.endpoints=4", "eval.reach=64"),
    *("corpus=synthetic", "corpus.documents=20", "corpus.document_tokens=300"),
    *("corpus.alphabet=16", "corpus.copy_tokens=8", "corpus.copies=4"),
]
TASK = [
    *("task.length=3", "task.longest=6", "task.examples=300", "task.examples_per_length=20"),
    *("eval.lengths=[1,3,6]",),
]
VARIANTS = ["pi", "ntk", "yarn", "logn", "window", "rerope", "selfextend", "lm_infinite"]
PROTOCOLS = ["tail", "last_k", "swap", "shuffle", "sliding-8", "nonoverlap"]
TIMES = ("tokens_per_s", "peak_mib", "seconds", "created", "time", "wall")  # parts of names


def lengthgen(*words: str) -> str:
    """Returns what a command prints; ends the script if it fails."""
    ran = subprocess.run(
        [sys.executable, "-m", "lengthgen", *words], cwd=ROOT, capture_output=True, text=True
    )
    if ran.returncode != 0:
        sys.exit(f"lengthgen {' '.join(words)}: exit code {ran.returncode}\n{ran.stderr}")
    return ran.stdout


def schemes() -> list[str]:
    return sorted(path.stem for path in (ROOT / "conf" / "scheme").glob("*.yaml"))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def weights_sha256(path: Path) -> str:
    """Returns the hash of the tensors, as a file without metadata would have it."""
    return hashlib.sha256(save(load_file(path))).hexdigest()[:16]


def rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a JSONL file without checksums and times."""
    if not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        {k: v for k, v in row.items() if k != "crc32" and not any(word in k for word in TIMES)}
        for row in found
    ]


def numbers(run_dir: Path) -> dict[str, Any]:
    """Returns hashes of a run's checkpoints and the values of its rows."""
    checkpoints = sorted(run_dir.glob("checkpoints/step-*/model.safetensors"))
    evaluated = sorted(
        rows(run_dir / "eval.jsonl"), key=lambda row: json.dumps(row, sort_keys=True)
    )
    return {
        "weights": {path.parent.name: weights_sha256(path) for path in checkpoints},
        "train": rows(run_dir / "train.jsonl"),
        "eval": evaluated,
        "probes": rows(run_dir / "probes.jsonl"),
    }


def named(runs: Path) -> dict[str, Path]:
    """Returns the run directories by scheme, corpus and seed: without the id, which may change."""
    found = sorted(path.parent for path in runs.glob("*/config.yaml"))
    return {re.sub(r"-[0-9a-f]{8}$", "", path.name): path for path in found}


def measure(folder: Path) -> dict[str, Any]:
    runs = folder / "runs"
    common = [*TINY, f"runtime.root={runs}", f"runtime.cache={folder / 'cache'}"]
    for scheme in schemes():
        print(f"train scheme={scheme}", flush=True)
        if scheme in ("abacus", "position_coupling"):  # which a task tells what belongs together
            lengthgen("train", f"scheme={scheme}", "task=copy", *TASK, *common)
        else:
            lengthgen("train", f"scheme={scheme}", *TEXT, *common)
    for task in ("copy", "addition"):
        print(f"train task={task}", flush=True)
        lengthgen("train", "scheme=rope", f"task={task}", *TASK, *common)
    rope = next(path for name, path in named(runs).items() if name.startswith("rope-tiny-synth"))
    print("resume, eval, probe, generate, export, report", flush=True)
    shutil.copytree(rope, folder / "straight")
    for path in sorted(rope.glob("checkpoints/step-*"))[1:]:
        shutil.rmtree(path)
    for path in ("DONE", "eval.jsonl"):
        (rope / path).unlink()
    lengthgen("train", "scheme=rope", *TEXT, *common)  # from the first checkpoint
    own = f"runtime.root={runs}", f"runtime.cache={folder / 'cache'}"
    lengthgen("eval", str(rope), f"--variants={','.join(VARIANTS)}", *own)
    lengthgen("eval", str(rope), f"--protocols={','.join(PROTOCOLS)}", "--lengths=16,32,64", *own)
    lengthgen("probe", str(rope), *own)
    return collect(folder, rope)


def collect(folder: Path, rope: Path) -> dict[str, Any]:
    """Returns all numbers of the runs, of a text, an export and a report made of them."""
    own = f"runtime.root={folder / 'runs'}", f"runtime.cache={folder / 'cache'}"
    shutil.rmtree(folder / "export", ignore_errors=True)
    text = lengthgen("generate", str(rope), "--prompt=abab", "--tokens=20", *own)
    lengthgen("export", str(rope), str(folder / "export"), *own)
    lengthgen("report", f"--out={folder / 'report'}", *own)
    tables = {path.name: list(csv.reader(path.open())) for path in folder.glob("report/*.csv")}
    return {
        "runs": {name: numbers(path) for name, path in named(folder / "runs").items()},
        "text": text,
        "export": sha256(folder / "export" / "model.safetensors"),
        "tables": tables,
    }


def differences(before: Any, after: Any, place: str = "") -> list[str]:
    """Returns a line per value of before that after lacks; new fields are no difference."""
    if isinstance(before, dict) and isinstance(after, dict):
        gone = [f"{place}/{key}: gone" for key in before if key not in after]
        common = [key for key in before if key in after]
        return gone + [d for k in common for d in differences(before[k], after[k], f"{place}/{k}")]
    if isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            return [f"{place}: {len(before)} entries, now {len(after)}"]
        pairs = enumerate(zip(before, after, strict=True))
        return [d for i, (b, a) in pairs for d in differences(b, a, f"{place}/{i}")]
    return [] if before == after else [f"{place}: {before}, now {after}"]


def report(found: list[str]) -> None:
    print("\n".join(found[:40]) or "equal, bit for bit")
    if found:
        sys.exit(f"{len(found)} differences")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write")
    write.add_argument("file", type=Path)
    write.add_argument("--keep", type=Path)
    compare = commands.add_parser("compare")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    old = commands.add_parser("old")
    old.add_argument("folder", type=Path)
    old.add_argument("file", type=Path)
    args = parser.parse_args()
    if args.command == "compare":
        report(differences(*(json.loads(p.read_text()) for p in (args.before, args.after))))
    elif args.command == "old":
        runs = named(args.folder / "runs")
        rope = next(path for name, path in runs.items() if name.startswith("rope-tiny-synth"))
        report(differences(json.loads(args.file.read_text()), collect(args.folder, rope)))
    else:
        os.environ["OMP_NUM_THREADS"] = "1"
        folder = args.keep or Path(tempfile.mkdtemp())
        folder.mkdir(parents=True, exist_ok=True)
        try:
            args.file.write_text(json.dumps(measure(folder), indent=1, sort_keys=True) + "\n")
        finally:
            if args.keep is None:
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
