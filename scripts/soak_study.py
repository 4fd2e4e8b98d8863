"""The small study that faults are injected into, and what its commands show of it.

runs/ holds three trained and evaluated runs, report/ a report of them, other/ a run on other text.
A command runs in a copy of the study, and its outcome is compared with that in an undisturbed copy.
"""

import csv
import hashlib
import io
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest import mock

from soak_forks import Ended, run

from lengthgen.errors import UserError
from lengthgen.report import pictures
from lengthgen.storage import read_rows

SETTINGS = [
    *("model.d_model=32", "model.n_layers=2", "model.n_heads=4", "model.d_ff=64"),
    *("corpus=synthetic", "corpus.documents=20", "corpus.document_tokens=300"),
    *("corpus.alphabet=16", "corpus.copy_tokens=8", "corpus.copies=4"),
    *("corpus.tokenizer=bpe", "corpus.vocab_size=270"),
    *("train.length=16", "train.batch_tokens=128", "train.tokens=1024", "train.precision=fp32"),
    *("train.checkpoint_every=3", "train.warmup_fraction=0.05", "model.init_std=0.2"),
    *("eval.lengths=[16,32,64]", "eval.targets=8", "eval.endpoints=4", "eval.reach=64"),
    *("eval.reference_variants=[]", "runtime.wandb=off", "runtime.device=cpu"),
    *("runtime.threads=1", "runtime.log_every=1"),
]
POINTS = {
    "rope-s1": ["scheme=rope"],
    "rope-s2": ["scheme=rope", "seed=2"],
    "alibi-s1": ["scheme=alibi"],
}
OTHER = ["scheme=rope", "corpus.alphabet=12", "runtime.root=other"]
LAST, REWOUND = "step-00000008", ("DONE", "eval.jsonl", "endpoints.jsonl")
COMMANDS = ("list", "report", "remake", "eval", "train", "generate", "probe", "export")
REMADE = ("rows.jsonl.gz", "manifest.json")  # from which `lengthgen report report` makes the rest
TEXTS = (".md", ".csv", ".tex", ".html", ".svg")
CURVE = ("run", "protocol", "variant", "length", "n_documents", "loss", "ppl")
NUMBER = re.compile(r"(?<![-\w])[0-9][0-9.,/e-]*")

Verdict = Literal["identical", "less", "refused", "silent", "hang", "traceback"]


class Judged(NamedTuple):
    """How a command took a fault, and why it is judged so."""

    verdict: Verdict
    why: str = ""


class Outcome(NamedTuple):
    """What a command left: how it ended, and by name all that must not depend on a fault."""

    ended: Ended
    facts: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Study:
    """The prepared study, and the outcome of each command on each run of an undisturbed copy."""

    folder: Path
    points: Sequence[str]
    twins: Mapping[tuple[str, str], Outcome]

    def run_dir(self, folder: Path, point: str) -> Path:
        """Returns the directory of a point's run in a copy of the study."""
        scheme, _, seed = point.partition("-")
        (found,) = (self.folder / "runs").glob(f"{scheme}-*-{seed}-*")
        return folder / "runs" / found.name

    def copy(self, folder: Path, command: str, point: str) -> Path:
        """Copies the study; for training, that of a run that was killed before its last step."""
        shutil.copytree(self.folder, folder, symlinks=True)
        if command == "train":
            run_dir = self.run_dir(folder, point)
            shutil.rmtree(run_dir / "checkpoints" / LAST)
            for name in REWOUND:
                (run_dir / name).unlink()
        return folder

    def words(self, command: str, point: str) -> list[str]:
        name = self.run_dir(self.folder, point).name
        return {
            "list": ["list", "runs"],
            "report": ["report", "--out", "made"],
            "remake": ["report", "report", "--out", "made"],
            "eval": ["eval", name, "--lengths", "8,16,32,64"],
            "train": ["train", *SETTINGS, *POINTS[point]],
            "generate": ["generate", name, "--prompt", "a", "--tokens", "8"],
            "probe": ["probe", name, "--probes", "bias"],
            "export": ["export", name, "made"],
        }[command]

    def outcome(self, command: str, point: str, folder: Path) -> Outcome:
        """Runs a command in a copy of the study and returns all that it left.

        A report draws no figures, which take it seconds: they show what its tables do.
        """
        with mock.patch.multiple(pictures, draw_text=_no_figures, overview=_no_figures):
            ended = run(self.words(command, point), folder)
        return Outcome(ended, _facts(command, self.run_dir(folder, point), ended, folder))

    def judge(self, command: str, point: str, found: Outcome, *, trusted: bool) -> Judged:
        """Compares an outcome with that of the twin.

        trusted: the point's run was written again with checksums, so that its numbers are its own;
        then it must not touch those of other runs, nor hide them.
        """
        twin = self.twins[command, point]
        bad = _broken(found)
        if bad is not None:
            return bad
        if found.ended.code == 2:
            return Judged("refused", found.ended.err.splitlines()[-1])
        own = self.run_dir(self.folder, point).name
        if command in ("eval", "train", "generate", "probe", "export"):
            if trusted or found.facts == twin.facts:
                return Judged("identical")
            if command in ("eval", "train") and _has_fewer_rows(found, twin):
                return Judged("less", "rows that were lost are not there")
            if command == "export" and _is_less(found, twin, "README.md"):
                return Judged("less", "the card shows less")
            differing = [k for k in {**twin.facts, **found.facts} if _differs(k, found, twin)]
            return Judged("silent", f"{differing[:3]} differ")
        if found.facts == twin.facts:
            return Judged("identical")
        excused = own if trusted else None
        return (_listed if command == "list" else _reported)(found, twin, excused)


def _no_figures(report: object) -> dict[str, bytes]:
    return {}


def prepare(folder: Path, *, points: Sequence[str]) -> Study:
    """Trains, evaluates and reports the study, and runs every command on an undisturbed copy."""
    base = folder / "study"
    base.mkdir(parents=True)
    for words in (*(POINTS[point] for point in points), OTHER):
        _must(run(["train", *SETTINGS, *words], base))
    for root in ("runs", "other"):
        made = base / "report" if root == "runs" else base / root / "report"
        _must(run(["report", f"runtime.root={root}", "--out", str(made)], base))
        for path in made.iterdir():
            if path.name not in REMADE:
                path.unlink()
    twins: dict[tuple[str, str], Outcome] = {}
    study = Study(folder=base, points=points, twins=twins)
    for point in points:
        for command in COMMANDS:
            shared = next((twins[command, one] for one in points if (command, one) in twins), None)
            if shared is not None and command in ("list", "report", "remake"):
                twins[command, point] = shared
                continue
            copy = study.copy(folder / "twin", command, point)
            twins[command, point] = study.outcome(command, point, copy)
            _must(twins[command, point].ended)
            shutil.rmtree(copy)
    return study


def _must(ended: Ended) -> None:
    if ended.code != 0:
        raise RuntimeError(f"the undisturbed study ended with {ended.code}: {ended.err[-500:]}")


def _facts(command: str, run_dir: Path, ended: Ended, folder: Path) -> dict[str, Any]:
    """Returns by name what the command has shown or written, without what a clock says."""
    found: dict[str, Any] = {"out": ended.out.replace(str(folder.resolve()), "")}
    match command:
        case "list":
            lines = [line.split("\t") for line in ended.out.splitlines()]
            return {cells[0]: cells[1:] for cells in lines}
        case "report" | "remake" | "export":
            for path in sorted((folder / "made").rglob("*")):
                if path.suffix in TEXTS:
                    found[path.name] = path.read_text(errors="surrogateescape")
                elif path.suffix == ".safetensors":
                    found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        case "eval" | "train":
            found["rows"] = _rows(run_dir / "eval.jsonl")
            last = run_dir / "checkpoints" / LAST / "model.safetensors"
            found["weights"] = last.is_file() and hashlib.sha256(last.read_bytes()).hexdigest()
            if command == "train":
                found["log"] = _rows(run_dir / "train.jsonl")
        case _:
            pass
    return found


def _rows(path: Path) -> set[str]:
    try:
        rows = read_rows(path)
    except (UserError, OSError):
        return set()
    for row in rows:
        for name in ("train/tokens_per_s", "train/peak_mib"):
            row.pop(name, None)
    return {json.dumps(row, sort_keys=True) for row in rows}


def _broken(found: Outcome) -> Judged | None:
    """Returns what no fault excuses: a hang, a traceback, an error of many lines, escapes."""
    ended = found.ended
    if ended.code is None:
        return Judged("hang", ended.err[-200:])
    said = ended.out + ended.err
    if "Traceback (most recent" in said or "Logging error" in said or ended.code not in (0, 2):
        return Judged("traceback", f"exit code {ended.code}: {ended.err[-300:]}")
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    if (ended.code == 2) != (errors != []) or errors != ended.err.splitlines()[-1:][: len(errors)]:
        return Judged("traceback", f"exit code {ended.code} with {errors}")
    texts = {"the terminal": said, **{k: v for k, v in found.facts.items() if Path(k).suffix}}
    for name, text in texts.items():
        obeyed = _obeyed(name, text)
        if obeyed:
            return Judged("silent", f"{name} holds {obeyed!r}")
    return None


def _obeyed(name: str, text: str) -> str | None:
    """Returns what a terminal, browser, spreadsheet or LaTeX would obey instead of showing it."""
    for one in text:
        if not one.isprintable() and one not in "\n\t\r":
            return one
    kind = Path(name).suffix
    if kind == ".csv":
        for cell in (cell for row in csv.reader(io.StringIO(text)) for cell in row):
            if len(cell) > 1 and cell[0] in "=+-@" and not NUMBER.match(cell[1:]):
                return cell
    marks = {".md": ("<script>a", "<img src=x"), ".tex": ("\\input{",)}
    marks[".html"] = marks[".svg"] = marks[".md"]
    return next((mark for mark in marks.get(kind, ()) if mark in text), None)


def _differs(key: str, found: Outcome, twin: Outcome) -> bool:
    return found.facts.get(key) != twin.facts.get(key)


def _has_fewer_rows(found: Outcome, twin: Outcome) -> bool:
    """True if a table and weights are the twin's, and all rows too, but some are not there."""
    rows = ("rows", "log")
    return all(found.facts.get(key, set()) <= twin.facts.get(key, set()) for key in rows) and not [
        key for key in twin.facts if key not in rows and _differs(key, found, twin)
    ]


def _listed(found: Outcome, twin: Outcome, excused: str | None) -> Judged:
    """Judges the lines of `list runs`: each run's is the twin's, or shows less, or says so."""
    named: list[str] = []
    for name, cells in twin.facts.items():
        now = found.facts.get(name)
        if now == cells or name == excused:
            continue
        if now is None:
            if excused is None:
                named.append(f"{name} is not listed")
                continue
            return Judged("silent", f"{name} is not listed")
        if now[0] == "unreadable":
            named.append(now[-1])
            continue
        # state, step/steps, tokens, ppl at T, ppl at the longest, why
        wrong = [one for one, was in zip(now[2:5], cells[2:5], strict=True) if one not in ("", was)]
        if wrong or (now[0] == cells[0] and now[1] != cells[1]):
            return Judged("silent", f"{name}: {cells} became {now}")
        named.append(f"{name}: {cells} became {now}")
    return Judged("less", "; ".join(named)) if named else Judged("identical")


def _reported(found: Outcome, twin: Outcome, excused: str | None) -> Judged:
    """Judges a report: each of its points is the twin's, and those of other runs are there."""
    points, whole = (_points(one) for one in (found, twin))
    others = {point[0] for point in whole} - {excused}
    strange = {point for point in points - whole if excused is None or point[0] in others}
    if strange:
        return Judged("silent", f"points that the twin lacks: {sorted(strange)[:2]}")
    if excused is not None:
        lost = {point for point in whole - points if point[0] in others}
        return Judged("silent", f"lost: {sorted(lost)[:2]}") if lost else Judged("identical")
    if points == whole and not _is_less(found, twin, "report.html"):
        return Judged("silent", "the page shows a number that the twin lacks")
    return Judged("less", found.ended.err or "fewer points or facts")


def _points(outcome: Outcome) -> set[tuple[str, ...]]:
    rows = csv.DictReader(io.StringIO(outcome.facts.get("curve.csv", "")))
    return {tuple(row[key] for key in CURVE) for row in rows}


def _is_less(found: Outcome, twin: Outcome, name: str) -> bool:
    """True if all numbers of a text are numbers of the twin's, and nothing else differs."""
    new = set(NUMBER.findall(found.facts.get(name, ""))) - set(
        NUMBER.findall(twin.facts.get(name, ""))
    )
    return not new and all(
        not _differs(key, found, twin)
        for key in {**twin.facts, **found.facts}
        if Path(key).suffix not in (".html", ".md", ".tex", ".svg") and key != "out"
    )
