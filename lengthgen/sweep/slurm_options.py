"""What --slurm takes: partition=main,gpus=2,time=4:00:00 and the like."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lengthgen.errors import UserError, suggestion

SECONDS_OF_GRACE = 120  # a step and a checkpoint, between Slurm's warning and its time limit


@dataclass(frozen=True, kw_only=True)
class Options:
    """What --slurm asks of a cluster for each point; None leaves the choice to the cluster."""

    time: int  # minutes
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    nodes: int = 1
    gpus: int | None = None  # of a node, each with a process of its own
    processes: int | None = None  # of a node without GPUs
    cpus: int | None = None  # of a process
    mem: float | None = None  # GB of a node
    parallel: int | None = None  # points that run at the same time

    @property
    def sbatch(self) -> dict[str, Any]:
        """The parameters of submitit's Slurm executor."""
        srun = ["--kill-on-bad-exit=1"]
        if self.cpus is not None:  # srun of Slurm 22.05 and later no longer takes it from sbatch
            srun.append(f"--cpus-per-task={self.cpus}")
        asked = {
            "job_name": "lengthgen",
            "time": self.time,
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "nodes": self.nodes,
            "gpus_per_node": self.gpus,
            "ntasks_per_node": self.gpus or self.processes or 1,
            "cpus_per_task": self.cpus,
            "mem": None if self.mem is None else f"{round(self.mem * 1024)}MB",
            "srun_args": srun,
            "additional_parameters": {
                "signal": f"USR2@{min(SECONDS_OF_GRACE, self.time * 15)}",  # 3/4 of a short limit
                "requeue": True,  # even where JobRequeue=0 is the default
            },
        }
        return {key: value for key, value in asked.items() if value is not None}


def options(text: str) -> Options:
    """Reads partition=main,gpus=2,time=4:00:00 and the like. Raises UserError for a mistake."""
    found: dict[str, Any] = {}
    for word in text.split(","):
        key, equals, value = (part.strip() for part in word.partition("="))
        if key not in _READERS:
            raise UserError(f"--slurm: unknown key {key!r}; {suggestion(key, _READERS)}")
        if key in found:
            raise UserError(f"--slurm: {key} is given twice; give it once")
        read, example = _READERS[key]
        found[key] = read(value) if equals else None
        if found[key] is None:
            raise UserError(f"--slurm: {key}={value} is not readable; give {key}={example}")
    if "time" not in found:
        raise UserError("--slurm: time is missing, the limit of a job; give time=60 (minutes)")
    if "gpus" in found and "processes" in found:
        raise UserError("--slurm: gpus and processes exclude each other; a GPU has one process")
    return Options(**found)


def _name(text: str) -> str | None:
    return text or None


def _count(text: str) -> int | None:
    return int(text) if re.fullmatch(r"0*[1-9][0-9]*", text) else None


def _gigabytes(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) and float(text) else None


def _minutes(text: str) -> int | None:
    """Reads minutes, H:MM:SS or D-HH:MM:SS; seconds are rounded up."""
    found = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d))|(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, seconds, alone = (int(group or 0) for group in found.groups())
    return (days * 24 + hours) * 60 + minutes + (seconds > 0) + alone or None


_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "time": (_minutes, "60 (minutes), time=H:MM:SS or time=D-HH:MM:SS"),
    **dict.fromkeys(("partition", "account", "qos", "constraint"), (_name, "NAME")),
    **dict.fromkeys(("nodes", "gpus", "processes", "cpus", "parallel"), (_count, "2")),
    "mem": (_gigabytes, "16 (GB of a node)"),
}
