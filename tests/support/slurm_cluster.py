"""A private Slurm cluster of two nodes, emulated on this machine and gone with the tests."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from small import SMALL

from lengthgen.sweep.grid import Point, points

NODES = ("127.0.0.2", "127.0.0.3")  # names that resolve on every Linux without /etc/hosts
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "setpriv")
SECONDS_TO_START = 30
STEPS = 150
SBIN = "/usr/sbin"  # where the daemons are, and not every user's PATH


def swept(root: Path, cache: Path, *overrides: str, plugins: Sequence[Path] = ()) -> list[Point]:
    """Returns points whose runs write no checkpoint before their last step, or a stop."""
    own = [f"train.tokens={STEPS * 128}", "train.checkpoint_every=1000", f"runtime.root={root}"]
    words = [*SMALL, *own, f"runtime.cache={cache}", "runtime.threads=null", *overrides]
    return points(words, config_dir=None, plugins=plugins)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Partitions: main, graced (preempted jobs have 12 s left), preempted, urgent, closed.

    A job that is put back into the queue starts again 6 s later.
    """

    folder: Path

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def ask(self, *command: str) -> str:
        """Returns what a Slurm command prints."""
        environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        asked = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert asked.returncode == 0, f"{command}: {asked.stderr}"
        return asked.stdout.strip()

    def is_busy(self) -> bool:
        """True if a job waits, runs or ends; not one that waits in the closed partition."""
        return bool(self.ask("squeue", "--noheader", "--partition=main,graced,preempted,urgent"))

    def of_job(self, job: str, key: str) -> str:
        """Returns a value that scontrol shows of a job."""
        words = self.ask("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)[key]


def lacking() -> str | None:
    """Returns why no cluster can be started here, None if one can."""
    path = f"{os.environ.get('PATH', '')}:{SBIN}"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (apt install slurm-wlm munge)"
    if os.geteuid() != 0:
        return "slurmd starts jobs as root only"
    return None


@contextmanager
def started(folder: Path) -> Generator[Cluster]:
    """Runs a cluster while the block lasts: its own key, sockets, state and ports."""
    cluster = Cluster(folder=folder)
    key, munge = folder / "munge.key", folder / "munge.socket"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    (folder / "state").mkdir()
    cluster.conf.write_text(_conf(folder, munge))
    daemons = [
        # --force: a folder under /tmp is shared, which it would refuse for a real key.
        [
            *("munged", "--foreground", "--force", f"--socket={munge}", f"--key-file={key}"),
            *(f"--{name}-file={folder}/munged.{name}" for name in ("pid", "log", "seed")),
        ],
        ["slurmctld", "-D", "-f", str(cluster.conf)],
        *(["slurmd", "-D", "-f", str(cluster.conf), "-N", node] for node in NODES),
    ]
    with ExitStack() as stack:
        stack.callback(_kill_what_is_left, cluster)  # after the daemons have ended
        for command in daemons:
            stack.enter_context(_running(command))
            if command[0] == "munged":
                _wait(munge.exists, folder)
        _wait(lambda: _is_up(cluster), folder)
        try:
            yield cluster
        finally:
            cluster.ask("scancel", "--user=root", "--full", "--signal=KILL")
            cluster.ask("scancel", "--user=root")
            _wait(lambda: not cluster.ask("squeue", "--noheader"), folder)


def _kill_what_is_left(cluster: Cluster) -> None:
    """Kills the processes of jobs that the cluster could not end: all know its slurm.conf."""
    known = f"SLURM_CONF={cluster.conf}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        if known in read(folder / "environ").split(b"\0"):
            with suppress(ProcessLookupError):
                os.kill(int(folder.name), signal.SIGKILL)


def read(path: Path) -> bytes:
    """Returns what a file in /proc holds, nothing if its process has ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


@contextmanager
def _running(command: list[str]) -> Generator[None]:
    """Runs a daemon while the block lasts, and no longer than this process lives."""
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{SBIN}"}
    daemon = subprocess.Popen(
        ["setpriv", "--pdeathsig=TERM", *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        daemon.terminate()
        try:
            daemon.wait(timeout=20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _is_up(cluster: Cluster) -> bool:
    environment = {**os.environ, "SLURM_CONF": str(cluster.conf)}
    command = ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%T"]
    asked = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return asked.stdout.split() == ["idle"] * len(NODES)


def _wait(is_so: Callable[[], bool], folder: Path) -> None:
    end = time.monotonic() + SECONDS_TO_START
    while not is_so():
        if time.monotonic() > end:
            logs = [path.read_text(errors="replace")[-1500:] for path in folder.glob("*.log")]
            raise TimeoutError("\n".join(["the cluster does not come up, or down", *logs]))
        time.sleep(0.05)


def _conf(folder: Path, munge: Path) -> str:
    host = socket.gethostname().split(".")[0]
    ctld, *slurmd = _free_ports(1 + len(NODES))
    nodes = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000"
        for name, port in zip(NODES, slurmd, strict=True)
    ]
    lines = [
        "ClusterName=test",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={ctld}",
        "SlurmUser=root",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        f"AuthInfo=socket={munge},cred_expire=5",  # the delay of a job that is put back; >= 5
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SwitchType=switch/none",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "SlurmdParameters=config_overrides",  # the CPUs above, whatever the machine has
        "ReturnToService=2",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool-%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/slurmctld.log",
        f"SlurmdLogFile={folder}/slurmd-%n.log",
        "AccountingStorageType=accounting_storage/none",
        "JobAcctGatherType=jobacct_gather/none",
        "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1",
        "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
        "JobRequeue=0",
        "KillWait=2",
        "CompleteWait=0",
        "MaxArraySize=2",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        *nodes,
        "PartitionName=main Nodes=ALL Default=YES State=UP PreemptMode=OFF",
        "PartitionName=preempted Nodes=ALL State=UP",
        "PartitionName=graced Nodes=ALL State=UP GraceTime=12",
        "PartitionName=urgent Nodes=ALL State=UP PriorityTier=10 PreemptMode=OFF",
        "PartitionName=closed Nodes=ALL State=DOWN",
    ]
    return "\n".join([*lines, ""])


def _free_ports(n: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
