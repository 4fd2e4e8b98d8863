"""Faults of files at rest: kinds of them, each injected into a copy of the study and judged."""

import hashlib
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import yaml
from soak_study import REMADE, Judged, Study

from lengthgen.storage import add_checksum, strip_checksum, write_rows

COMMANDS = {  # how often which is given, next to `list runs`; a report takes seconds
    **{"list": 4, "report": 3, "remake": 1, "eval": 4, "train": 4, "generate": 2},
    **{"probe": 1, "export": 1},
}
PAGE = 4096
HOSTILE = (
    *("\x1b]52;c;cm0gLXJm\x07", "\x1b[2J\x1b[1;31mdone", "=cmd|'/C calc'!A0", "@SUM(1)", "+1|x"),
    *("<script>alert(1)</script>", "'\"><img src=x onerror=alert(1)>", "](javascript:alert(1))"),
    *("\u202etxt.exe", "a\nerror: not one", "\r\x9b31m", "-rf", "$(touch mark)", "%n%s{0}"),
    *("\\input{/etc/passwd}", "x" * 4000, "\ud800", "", "rope\x00", "| a | b |"),
)
VALUES = (
    *(None, True, False, -1, 0, 1 << 60, 10**400, 1e308, -1e308, float("nan"), float("inf")),
    *([], [1], [[]], {}, {"a": 1}, "x", "1", "2001-01-01", "\x1b[2J", "=1+1"),
)


class Place(NamedTuple):
    """Where a fault is injected: a copy of the study, and the run of which a file is chosen."""

    study: Study
    folder: Path
    point: str
    command: str
    draws: random.Random

    @property
    def run_dir(self) -> Path:
        return self.study.run_dir(self.folder, self.point)

    def files(self) -> list[Path]:
        """Returns the files that the command reads, or might."""
        if self.command == "remake":
            return [self.folder / "report" / name for name in REMADE]
        cached = [] if self.command in ("list", "report") else self.folder.glob("runs/.cache/**/*")
        found = [path for path in (*self.run_dir.rglob("*"), *cached) if path.is_file()]
        return sorted(found)

    def file(self, *, at_least: int = 1, endings: tuple[str, ...] = ("",)) -> Path:
        """Returns one of these files with at least so many bytes."""
        found = [
            path
            for path in self.files()
            if path.stat().st_size >= at_least and path.name.endswith(endings)
        ]
        return self.draws.choice(found or self.files())

    def name(self, path: Path) -> str:
        return str(path.relative_to(self.folder))


Inject = Callable[[Place], str]  # returns what was done


# Files of another run, step or corpus


def swap(place: Place) -> str:
    """Puts intact files of another run in the place of those of this one."""
    others = sorted(path.parent for path in place.folder.glob("*/*/config.yaml"))
    other = place.draws.choice([one for one in others if one != place.run_dir])
    rows = "eval.jsonl train.jsonl DONE"
    whole = ("checkpoints", "checkpoints/*", rows, "eval.jsonl", "DONE", "status.json")
    if place.command == "remake":
        path = place.file()
        shutil.copyfile(place.folder / "other" / "report" / path.name, path)
        return f"{place.name(path)} of another report"
    if place.draws.random() < 0.5:
        path = place.file()
        inside = path.is_relative_to(place.run_dir)
        folders = [other if inside else place.folder / "other" / ".cache"]
        if "checkpoints" in str(path) and place.draws.random() < 0.3:
            folders = [place.run_dir]  # of another step
        sources = [one for folder in folders for one in sorted(folder.rglob(f"*{path.suffix}"))]
        alike = [one for one in sources if one.name == path.name and one != path]
        source = place.draws.choice(
            alike or [one for one in sources if one.is_file()] or [other / "config.yaml"]
        )
        path.write_bytes(source.read_bytes())
        return f"{place.name(path)} from {place.name(source)}"
    patterns = place.draws.choice(whole)
    for pattern in patterns.split():
        for source in sorted(other.glob(pattern)):
            target = place.run_dir / source.relative_to(other)
            if source.is_dir():
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(source, target)
            else:
                shutil.copyfile(source, target)
    return f"{patterns} of {other.name}"


def add_rows(place: Place) -> str:
    """Appends the rows of another run to the rows of this one, or its own a second time."""
    others = sorted(place.folder.glob("*/*/eval.jsonl"))
    path = place.run_dir / place.draws.choice(["eval.jsonl", "train.jsonl"])
    source = place.draws.choice([one.with_name(path.name) for one in others] or [path])
    with path.open("ab") as file:
        file.write(source.read_bytes())
    return f"rows of {place.name(source)} behind those of {place.name(path)}"


# Damage


def flip(place: Place) -> str:
    """Flips a bit."""
    path = place.file()
    content = bytearray(path.read_bytes())
    at, bit = place.draws.randrange(len(content)), place.draws.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {at} of {place.name(path)}"


def truncate(place: Place) -> str:
    """Cuts a file at some byte."""
    path = place.file()
    size = place.draws.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"{place.name(path)} cut at {size}"


def zero(place: Place) -> str:
    """Fills a page of a file, or what there is of it, with zeros."""
    path = place.file()
    content = path.read_bytes()
    start = PAGE * place.draws.randrange(-(-len(content) // PAGE))
    blank = bytes(len(content[start : start + PAGE]))
    path.write_bytes(content[:start] + blank + content[start + PAGE :])
    return f"zeros in {place.name(path)} from {start}"


def drop_lines(place: Place) -> str:
    """Deletes, doubles or moves a line."""
    path = place.file(endings=(".jsonl", ".yaml", ".json"))
    lines = path.read_bytes().splitlines(keepends=True)
    at = place.draws.randrange(len(lines))
    how = place.draws.choice(("deleted", "doubled", "moved"))
    line = lines.pop(at)
    if how != "deleted":
        to = at if how == "doubled" else place.draws.randrange(len(lines) + 1)
        lines[to:to] = [line] * (2 if how == "doubled" else 1)
    path.write_bytes(b"".join(lines))
    return f"line {at + 1} of {place.name(path)} {how}"


def unseal(place: Place) -> str:
    """Changes the key of a checksum and a digit before it."""
    path = place.file(endings=(".jsonl", ".yaml", ".json", "DONE"))
    content = path.read_bytes()
    lines = [i for i, line in enumerate(content.splitlines()) if b"crc32" in line]
    if not lines:
        return flip(place)
    at, parts = place.draws.choice(lines), content.splitlines(keepends=True)
    parts[at] = parts[at].replace(b"crc32", place.draws.choice([b"crc31", b"CRC32", b"c"]))
    line = place.draws.randrange(len(parts))
    digits = [i for i, byte in enumerate(parts[line]) if chr(byte).isdigit()]
    if digits:
        i = place.draws.choice(digits)
        parts[line] = parts[line][:i] + b"%d" % place.draws.randrange(10) + parts[line][i + 1 :]
    path.write_bytes(b"".join(parts))
    return f"checksum {at + 1} of {place.name(path)} renamed, a digit of line {line + 1} changed"


def lose(place: Place) -> str:
    """Deletes a file."""
    path = place.file(at_least=0)
    path.unlink()
    return f"{place.name(path)} deleted"


# What is no file


def no_file(place: Place) -> str:
    """Puts a pipe, a device, a folder, a socket, a link to nothing or in a circle in its place."""
    path = place.file(at_least=0)
    path.unlink()
    how = place.draws.choice(("a pipe", "a device", "a folder", "a link to nothing", "a circle"))
    if how == "a pipe":
        os.mkfifo(path)
    elif how == "a device":
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
        except PermissionError:  # which takes root
            path.symlink_to("/dev/zero")
    elif how == "a folder":
        path.mkdir()
    else:
        path.symlink_to(path.name if how == "a circle" else "nothing")
    return f"{how} as {place.name(path)}"


# Hostile names and contents


def rename(place: Place) -> str:
    """Gives a run's folder, its status, a row, its provenance or its scheme a hostile name."""
    text, run_dir = place.draws.choice(HOSTILE), place.run_dir
    where = place.draws.choice(("folder", "status", "row", "argv", "scheme", "file", "bytes"))
    if where == "folder":
        safe = text.encode("utf-8", "replace").decode().replace("/", "_").replace("\0", "0")[:200]
        run_dir.rename(run_dir.with_name(f"{safe}{run_dir.name}"[-250:]))
    elif where == "bytes":
        os.rename(run_dir, os.fsencode(run_dir.with_name("rope\udcff\udcfe")))
    elif where == "status":
        said = {"state": "failed", "reason": text, "host": text, "pid": 1}
        (run_dir / "status.json").write_text(json.dumps(said))
    elif where == "argv":
        path = run_dir / "env.json"
        env = json.loads(strip_checksum(path.read_bytes()))
        env |= {"argv": ["x", "train", text], "processor": text, "libraries": {text: text}}
        path.write_bytes(add_checksum(json.dumps(env, indent=1).encode()))
        (run_dir / "status.json").write_text('{"state": "failed", "reason": null}')
    elif where == "scheme":
        _change_config(run_dir, lambda plain: plain["scheme"].update(name=text))
    elif where == "file":
        safe = text.encode("utf-8", "replace").decode().replace("/", "_").replace("\0", "0")[:200]
        (run_dir / "checkpoints" / f"step-{safe}").mkdir()
        (run_dir / "probes").mkdir(exist_ok=True)
        (run_dir / "probes" / f"{safe}.svg").write_text(f"<svg>{text!a}<script>alert(1)</script>")
    else:
        keys = ("scheme", "document", "corpus", "model", "variant", "protocol", "endpoints")
        chosen = dict.fromkeys(place.draws.sample(keys, 2), text)
        _change_rows(run_dir / "eval.jsonl", lambda i, row: {**row, **chosen})
    return f"{text[:40]!a} as {where} of {run_dir.name}"


def mistype(place: Place) -> str:
    """Gives a value of a row, of the configuration or of the status a wrong type or size."""
    value, run_dir = place.draws.choice(VALUES), place.run_dir
    name = place.draws.choice(("eval.jsonl", "train.jsonl", "config.yaml", "env.json", "DONE"))
    if not (run_dir / name).exists():
        name = "train.jsonl"
    path = run_dir / name
    if name.endswith(".jsonl"):
        rows = [json.loads(strip_checksum(line)) for line in path.read_bytes().splitlines()]
        key, at = place.draws.choice(sorted(rows[0])), place.draws.randrange(len(rows))
        _change_rows(path, lambda i, row: {**row, key: value} if i == at else row)
    elif name == "config.yaml":
        key = ""

        def change(plain: dict[str, Any]) -> None:
            nonlocal key
            inside, key = plain, place.draws.choice(sorted(plain))
            while isinstance(inside[key], dict) and inside[key] and place.draws.random() < 0.8:
                inside = inside[key]
                key = place.draws.choice(sorted(inside))
            inside[key] = value

        _change_config(run_dir, change)
    else:
        plain = json.loads(strip_checksum(path.read_bytes().rstrip()))
        key = place.draws.choice(sorted(plain))
        path.write_bytes(add_checksum(json.dumps({**plain, key: value}).encode()) + b"\n")
    return f"{key} of {name} is {repr(value)[:40]}"


def bomb(place: Place) -> str:
    """Fills a file with text that takes a reader's stack, memory or time."""
    aliases = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 10)}]" for i in range(10)]
    contents = {
        "60,000 brackets": b"[" * 60_000 + b"\n",
        "60,000 braces": b'{"a":' * 60_000 + b"\n",
        "a number of 5,000 digits": b'{"step": ' + b"9" * 5000 + b"}\n",
        "aliases of aliases": "\n".join(aliases).encode(),
        "an alias of itself": b"a: &a [*a]\n",
        "tags": b"!!python/object/apply:os.mkdir [mark]\n",
        "no UTF-8": b"\xff\xfe\x00{" * 100,
        "a list": b"[1, 2]\n",
        "a bare number": b"8\n",
        "infinity": b'{"step": Infinity, "nats": NaN, "state": "done"}\n',
        "a doubled key": b'{"step": 8, "step": 9}\n',
        "half a character": b'{"run": "\\ud800", "state": "\\udfff"}\n',
        "nothing": b"",
    }
    name = place.draws.choice([*contents, "2 GiB of nothing"])
    path = place.file(at_least=0, endings=(".jsonl", ".json", ".yaml", "DONE", ".gz"))
    path.write_bytes(contents.get(name, b""))
    if name not in contents:
        os.truncate(path, 2 << 30)
    return f"{name} in {place.name(path)}"


def tokenizer(place: Place) -> str:
    """Gives the tokenizer of the token cache two entries of one id, or huge ids, and seals it."""
    (path,) = place.folder.glob("runs/.cache/*/tokenizer.json")
    said = json.loads(path.read_bytes())
    vocab = said["model"]["vocab"]
    first, second = place.draws.sample(sorted(vocab), 2)
    changed = place.draws.choice((vocab[second], 1 << 31, 1 << 40, -1, len(vocab) + 5, 1.5, "1"))
    vocab[first] = changed
    path.write_text(json.dumps(said))
    meta = path.with_name("meta.json")
    plain = json.loads(strip_checksum(meta.read_bytes()))
    plain["files"][path.name] = path.stat().st_size
    if place.draws.random() < 0.5:
        plain["sha256"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    meta.write_bytes(add_checksum(json.dumps(plain, indent=1).encode()))
    return f"id {changed!r} for {first!a} in {place.name(path)}"


def _change_rows(path: Path, change: Callable[[int, dict[str, Any]], dict[str, Any]]) -> None:
    if path.exists():
        lines = path.read_bytes().splitlines()
        rows = [json.loads(strip_checksum(line)) for line in lines]
        write_rows(path, [change(i, row) for i, row in enumerate(rows)])


def _change_config(run_dir: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes config.yaml and writes its first line, the checksum of the others."""
    path = run_dir / "config.yaml"
    plain = yaml.safe_load(path.read_text())
    change(plain)
    text = yaml.safe_dump(plain, sort_keys=False)
    heading = f"# crc32 of what follows: {zlib.crc32(text.encode()):08x}\n"
    path.write_text(heading + text)


# Kills at start-up, full disks


def kill_at_start(place: Place) -> str:
    """Starts an interpreter with the command, and kills it before its work begins or soon after."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = place.study.words(place.command, place.point)
    process = subprocess.Popen(
        [sys.executable, "-m", "lengthgen", *words],
        cwd=place.folder,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wanted = place.draws.uniform(0.05, 3.5)  # seconds of CPU; importing torch takes two
    ticks, spent = os.sysconf("SC_CLK_TCK"), 0.0
    while spent < wanted and process.poll() is None:
        time.sleep(0.01)
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        spent = (int(fields[11]) + int(fields[12])) / ticks
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    shutil.rmtree(place.folder / "made", ignore_errors=True)
    return f"{place.command} killed after {spent:.2f} s of CPU"


# The kinds


class Kind(NamedTuple):
    """A kind of fault: what injects it, into what of which command, and how many of 1,000."""

    inject: Sequence[Inject]
    share: int
    commands: Sequence[str] = tuple(COMMANDS)
    trusted: bool = False  # Study.judge


KINDS = {
    "kill at start-up": Kind([kill_at_start], 40, ("eval", "train", "export")),
    "file of another run, step or corpus": Kind([swap, swap, add_rows], 210),
    "flipped bit": Kind([flip], 160),
    "truncated file, page of zeros": Kind([truncate, zero], 90),
    "line deleted, doubled or moved": Kind([drop_lines], 70),
    "checksum renamed": Kind([unseal], 60),
    "lost file": Kind([lose], 40),
    "full disk": Kind([], 40, ("eval", "train", "export")),
    "pipe, device, folder or bad link": Kind([no_file], 90),
    "hostile name": Kind([rename], 60, trusted=True),
    "value of a wrong type or size": Kind([mistype], 50, trusted=True),
    "bomb": Kind([bomb], 40),
    "tokenizer with doubled or huge ids": Kind([tokenizer], 20, ("eval", "train", "generate")),
}


class Tried(NamedTuple):
    """A fault, and how the commands took it: the worst of their verdicts."""

    kind: str
    what: str
    judged: Judged


def fault(study: Study, kind: str, number: int, *, seed: int, folder: Path) -> Tried:
    """Injects one fault into a copy of the study, runs a command, and judges it."""
    draws = random.Random(f"{seed} {kind} {number}")
    about, point = KINDS[kind], draws.choice(study.points)
    weights = [COMMANDS[command] for command in about.commands]
    (command,) = draws.choices(about.commands, weights)
    try:
        if kind == "full disk":
            return Tried(kind, *_on_full_disk(study, command, point, draws, folder))
        study.copy(folder, command, point)
        place = Place(study, folder, point, command, draws)
        what = f"{draws.choice(about.inject)(place)}; {command} {point}"
        return Tried(kind, what, _judged(study, command, point, folder, trusted=about.trusted))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _judged(study: Study, command: str, point: str, folder: Path, *, trusted: bool) -> Judged:
    found = study.outcome(command, point, folder)
    return study.judge(command, point, found, trusted=trusted)


def _on_full_disk(
    study: Study, command: str, point: str, draws: random.Random, folder: Path
) -> tuple[str, Judged]:
    """Runs a command on a disk that fills up, and again once there is room."""
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], check=True, capture_output=True
    )
    try:
        copy = study.copy(folder / "copy", command, point)
        pages = draws.choice((0, 1, 2, 3, draws.randrange(100), draws.randrange(400)))
        found = os.statvfs(folder)
        filler, size = folder / "filler", found.f_bavail * found.f_frsize - pages * PAGE
        filler.write_bytes(bytes(size))
        what = f"{pages} pages are free; {command} {point}"
        with mock.patch("shutil.disk_usage", return_value=_Room()):  # taken later
            first = study.judge(command, point, study.outcome(command, point, copy), trusted=False)
        if first.verdict not in ("refused", "identical"):
            return what, first
        filler.unlink()
        shutil.rmtree(copy / "made", ignore_errors=True)
        again = study.judge(command, point, study.outcome(command, point, copy), trusted=False)
        if again.verdict != "identical":
            return what, Judged("silent", f"with room again: {again.verdict}, {again.why}")
        return what, first
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


class _Room(NamedTuple):
    free: int = 1 << 40
