"""A private Slurm cluster of two nodes, emulated on this machine and gone with the tests."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from commands import until
from small import smaller

from lengthgen.runs import status
from lengthgen.runs.status import Status
from lengthgen.sweep.grid import Point, points
from lengthgen.sweep.states import PointState, states_of

NODES = ("127.0.0.2", "127.0.0.3")  # names that resolve on every Linux without /etc/hosts
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "setpriv")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"  # where the daemons are
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
# cred_expire: the delay of a job that is put back, 5 s or more
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# the CPUs below, whatever the machine has
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
JobRequeue=0
KillWait=2
CompleteWait=0
MaxArraySize=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=1000
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=1000
PartitionName=main Nodes=ALL Default=YES State=UP PreemptMode=OFF
PartitionName=graced Nodes=ALL State=UP GraceTime=12
PartitionName=urgent Nodes=ALL State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=closed Nodes=ALL State=DOWN
"""


def swept(root: Path, cache: Path, *overrides: str, plugins: Sequence[Path] = ()) -> list[Point]:
    """Returns points whose runs write no checkpoint before their last step, or a stop."""
    own = ["train.tokens=19200", "train.checkpoint_every=1000", f"runtime.root={root}"]
    usual = [*own, f"runtime.cache={cache}", "runtime.threads=null"]
    words = smaller(*smaller(*overrides, usual=usual))
    return points(words, config_dir=None, plugins=plugins)


def begun(point: Point, standing: Status, *, seconds_ago: float = 0) -> Point:
    """Gives a point the directory of a run that reported this status, so long ago."""
    point.run_dir.mkdir(parents=True, exist_ok=True)
    (point.run_dir / "config.yaml").touch()
    status.write_status(point.run_dir, standing, run=point.run_id)
    then = time.time() - seconds_ago
    os.utime(point.run_dir / "status.json", (then, then))
    return point


def state_of(point: Point) -> PointState:
    return states_of([point])[point.run_id]


class Cluster(NamedTuple):
    """Partitions: main, graced (preempted jobs have 12 s left), urgent, closed."""

    conf: Path

    def ask(self, *command: str) -> str:
        """Returns what a Slurm command prints."""
        environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        asked = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert asked.returncode == 0, f"{command}: {asked.stderr}"
        return asked.stdout.strip()

    def of_job(self, job: str, key: str) -> str:
        """Returns a value that scontrol shows of a job."""
        words = self.ask("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)[key]

    def is_up(self) -> bool:
        command = ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%T"]
        environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        asked = subprocess.run(command, env=environment, capture_output=True, text=True)
        return asked.stdout.split() == ["idle"] * len(NODES)


def lacking() -> str | None:
    """Returns why no cluster can be started here, None if one can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (apt install slurm-wlm munge)"
    return None if os.geteuid() == 0 else "slurmd starts jobs as root only"


@contextmanager
def started(folder: Path) -> Generator[Cluster]:
    """Runs a cluster while the block lasts: its own key, sockets, state and ports."""
    cluster, key = Cluster(folder / "slurm.conf"), folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    (folder / "state").mkdir()
    about = {"host": socket.gethostname().split(".")[0], "ports": _free_ports(3), "nodes": NODES}
    cluster.conf.write_text(CONF.format(folder=folder, **about))
    files = [f"--{name}-file={folder}/munged.{name}" for name in ("pid", "log", "seed")]
    files += [f"--socket={folder}/munge.socket", f"--key-file={key}"]
    conf = str(cluster.conf)
    with ExitStack() as stack:
        # --force: a folder under /tmp is shared, which it would refuse for a real key.
        stack.enter_context(_running("munged", "--foreground", "--force", *files))
        _wait((folder / "munge.socket").exists, folder)
        stack.enter_context(_running("slurmctld", "-D", "-f", conf))
        for node in NODES:
            stack.enter_context(_running("slurmd", "-D", "-f", conf, "-N", node))
        _wait(cluster.is_up, folder)
        try:
            yield cluster
        finally:
            cluster.ask("scancel", "--user=root", "--full", "--signal=KILL")
            cluster.ask("scancel", "--user=root")
            _wait(lambda: not cluster.ask("squeue", "--noheader"), folder)


@contextmanager
def _running(*command: str) -> Generator[None]:
    """Runs a daemon while the block lasts, and no longer than this process lives."""
    nothing, words = subprocess.DEVNULL, ["setpriv", "--pdeathsig=TERM", *command]
    own: dict[str, Any] = {"env": {**os.environ, "PATH": PATH}, "stdin": nothing}
    with subprocess.Popen(words, **own, stdout=nothing, stderr=nothing) as daemon:
        try:
            yield
        finally:
            daemon.terminate()


def _wait(is_so: Callable[[], bool], folder: Path) -> None:
    try:
        until(is_so)
    except TimeoutError as error:
        logs = [path.read_text(errors="replace")[-1500:] for path in folder.glob("*.log")]
        raise TimeoutError("\n".join(["the cluster does not come up, or down", *logs])) from error


def _free_ports(n: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for port in sockets:
            port.bind(("127.0.0.1", 0))
        return [port.getsockname()[1] for port in sockets]
