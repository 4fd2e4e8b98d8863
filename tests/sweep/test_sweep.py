"""A sweep's plan: its points, how they stand, where they may run, and what is refused."""

import re
import shlex
from itertools import product
from pathlib import Path

import pytest
import torch
from repository import ROOT
from shell import Shell
from small import SMALL

from lengthgen.config import compose, schema, tuned_rates
from lengthgen.errors import UserError
from lengthgen.runs import status
from lengthgen.runs.status import Status
from lengthgen.sweep import slurm, states
from lengthgen.sweep.grid import Point, points
from lengthgen.sweep.local import Slot, slots
from lengthgen.sweep.states import PointState, state_of

FAULTLESS = """
from torch import Tensor
from lengthgen.schemes import AttentionContext, Part, ModelDims

class Mine(Part):
    def __init__(self, shape: ModelDims, *, word: str) -> None:
        super().__init__(shape)

    def bias(self, c: AttentionContext) -> Tensor:
        return -c.distance()
"""


def grid(*overrides: str, root: Path | str = "runs") -> list[Point]:
    words = [*SMALL, f"runtime.root={root}", *overrides]
    return points(words, config_dir=None, plugins=[])


def single(root: Path, *overrides: str) -> Point:
    (point,) = grid("seed=1", *overrides, root=root)
    return point


def refused(*overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        grid(*overrides)
    return str(caught.value)


# The points


def test_the_last_override_varies_fastest() -> None:
    titles = [point.title for point in grid("scheme=rope,alibi", "seed=1,2,3")]
    assert titles == [f"scheme={name} seed={n}" for name in ("rope", "alibi") for n in (1, 2, 3)]


def test_a_range_and_a_glob_are_axes_like_any_other() -> None:
    found = grid("scheme=glob(alibi*)", "seed=range(1,3)")
    names = [name for name in compose.choices("scheme", config_dir=None) if "alibi" in name]
    want = [{"scheme": name, "seed": str(n)} for name, n in product(names, (1, 2))]
    assert [point.varied for point in found] == want
    assert [(p.config.scheme.name, p.config.seed) for p in found] == [
        (one["scheme"], int(one["seed"])) for one in want
    ]


def test_a_title_holds_the_keys_that_vary_or_the_run_if_none_does() -> None:
    found = grid("scheme=rope", "seed=3", "train.lr=1e-3,2e-3")
    assert [point.title for point in found] == ["train.lr=0.001", "train.lr=0.002"]
    (point,) = grid("scheme=rope")
    assert (point.title, point.varied) == (point.run_id, {})


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["seed=1,2", "eval.targets=4,8"], ["seed=1 eval.targets=4", "seed=1 eval.targets=8"]),
        (["runtime.log_every=1,2"], ["runtime.log_every=1", "runtime.log_every=2"]),
    ],
)
def test_two_points_that_would_be_one_run_are_both_named(
    overrides: list[str], named: list[str]
) -> None:
    said = refused(*overrides)
    assert said.startswith(f"{named[0]} and {named[1]} are one run, rope-")
    assert said.endswith("sweep keys that change the training")


def test_a_value_that_is_given_twice_is_refused() -> None:
    said = refused("scheme=rope,alibi", "seed=1,1")
    assert said == "scheme=rope is there twice; give each value once"


def test_a_point_whose_mistake_names_the_swept_value_names_it_once() -> None:
    said = refused("scheme=rope,alib", "seed=1,2")
    assert said == "scheme=alib: no such scheme; did you mean alibi?"


def test_an_invalid_point_is_named_by_its_swept_values_and_leaves_nothing(tmp_path: Path) -> None:
    words = ["scheme=rope,alibi", "model.n_heads=4,3", f"runtime.root={tmp_path}/runs"]
    said = refused(*words)
    assert said.startswith("scheme=rope model.n_heads=3: model.d_model=32 is not divisible by")
    assert list(tmp_path.iterdir()) == []


def test_the_studies_hold_every_scheme_but_the_upper_bounds() -> None:
    script = (ROOT / "scripts" / "results.sh").read_text(encoding="utf-8")
    lists = dict(re.findall(r"^(slow|explicit)=(\S+)", script, flags=re.MULTILINE))
    tuned = tuned_rates.read(ROOT / "results" / "rates" / "tuned.yaml")
    lists["tuned"] = ",".join(tuned)
    assert all(
        f'"scheme={of}' in script for of in ("$tuned", "$explicit", "rope,alibi,kerple,$slow")
    )
    [rest] = re.findall(r'sweep schemes "(scheme=glob.*?)"', script)
    for name, schemes in lists.items():
        rest = rest.replace(f"${name}", schemes)
    swept = [point.config.scheme.name for point in grid(rest)]
    named = {name for schemes in lists.values() for name in schemes.split(",")}
    every = set(compose.choices("scheme", config_dir=None))
    assert not named & set(swept)
    assert every - named - set(swept) == {"abacus", "position_coupling"}


def test_a_mistake_outside_the_sweep_is_said_as_for_one_run() -> None:
    assert refused("model.n_heads=3").startswith("model.d_model=32 is not divisible by")


def test_the_command_of_a_point_makes_the_same_run_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my groups/scheme").mkdir(parents=True)
    text = "# Mine.\nname: mine\nparts: {mine: {word: plain}}\nvariants: {}\n"
    (tmp_path / "my groups/scheme/mine.yaml").write_text(text)
    (tmp_path / "my part.py").write_text(FAULTLESS)
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, "scheme=mine", "scheme.parts.mine.word='a, b','it\\'s',x y", "train.lr=1e-3"]
    found = points(words, config_dir=Path("my groups"), plugins=[Path("my part.py")])
    assert [p.config.scheme.parts["mine"]["word"] for p in found] == ["a, b", "it's", "x y"]
    monkeypatch.chdir("/")
    for point in found:
        program, command, *rest = shlex.split(point.command)
        assert (program, command) == ("lengthgen", "train")
        assert rest[-4::2] == ["--config-dir", "--plugin"]
        config_dir, plugin = map(Path, rest[-3::2])
        again = schema.from_overrides(rest[:-4], config_dir=config_dir, plugins=[plugin])
        assert again.run_id == point.run_id


# How a point stands


def begun(point: Point, standing: Status) -> Point:
    """Gives a point the directory of a run with this status."""
    point.run_dir.mkdir(parents=True)
    (point.run_dir / "config.yaml").touch()
    status.write(point.run_dir, standing, run=point.run_id)
    return point


def test_a_point_without_a_directory_or_that_ended_before_it_was_begun_is_new(
    tmp_path: Path,
) -> None:
    point = single(tmp_path)
    assert state_of(point) == PointState("new")
    begun(point, Status("stopped"))
    (point.run_dir / "config.yaml").unlink()
    assert state_of(point) == PointState("new")


@pytest.mark.parametrize("state", ["failed", "diverged", "stopped", "killed"])
def test_a_point_stands_as_its_run_says(tmp_path: Path, state: status.State) -> None:
    point = begun(single(tmp_path), Status(state, reason="why"))
    assert state_of(point) == PointState(state, "why")


def test_a_point_runs_as_long_as_its_run_is_held(tmp_path: Path) -> None:
    point = begun(single(tmp_path), Status("running"))
    with status.run_lock(point.run_dir, "train"):
        assert state_of(point).state == "running"
    assert state_of(point).state == "killed"


def test_a_point_is_done_only_if_it_was_measured_as_requested_now(tmp_path: Path) -> None:
    point = begun(single(tmp_path), Status("done", evaluated="another"))
    assert state_of(point).state == "stopped"
    assert states.pending([point], states.states_of([point])) == [point]
    status.write(
        point.run_dir, Status("done", evaluated=point.config.evaluation_id), run=point.run_id
    )
    assert state_of(point) == PointState("done")


def test_what_is_settled_or_at_work_is_not_run_and_only_bad_ends_are_unsuccessful() -> None:
    every = grid("seed=range(1,9)")
    names: list[states.State] = [
        *("new", "queued", "running", "stopped"),
        *("killed", "failed", "diverged", "done"),
    ]
    standing = {p.run_id: PointState(state) for p, state in zip(every, names, strict=True)}
    todo = [standing[p.run_id].state for p in states.pending(every, standing)]
    assert todo == ["new", "stopped", "killed", "failed"]
    bad = [standing[p.run_id].state for p in states.unsuccessful(every, standing)]
    assert bad == ["stopped", "killed", "failed", "diverged"]
    assert states.counted(standing).startswith("1 done, 1 diverged, 1 failed")


# Where points run


@pytest.mark.parametrize(
    ("cores", "gpus", "requested", "expected"),
    [
        (8, "", {}, [(1, ())] * 8),
        (8, "", {"n_points": 3}, [(2, ())] * 3),
        (8, "", {"jobs": 2}, [(4, ())] * 2),
        (8, "", {"gpus": 4}, [(1, ())] * 2),
        (2, "", {"jobs": 4}, [(1, ())] * 4),
        (8, "ab", {}, [(4, ("a",)), (4, ("b",))]),
        (8, "ab", {"per_gpu": 2}, [(2, ("a",)), (2, ("b",)), (2, ("a",)), (2, ("b",))]),
        (8, "abcd", {"gpus": 2}, [(2, ("a", "b")), (2, ("c", "d"))]),
        (8, "abc", {"gpus": 2}, [(4, ("a", "b"))]),
        (8, "ab", {"jobs": 1}, [(8, ("a",))]),
    ],
)
def test_cores_and_gpus_are_divided_among_the_runs(
    cores: int, gpus: str, requested: dict[str, int], expected: list[Slot]
) -> None:
    options = {"jobs": None, "gpus": None, "per_gpu": 1, "n_points": 100, **requested}
    assert slots(cores, [*gpus], **options) == expected  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("gpus", "requested", "said"),
    [
        ("", {"per_gpu": 2}, "--per-gpu: there is no GPU to share"),
        ("ab", {"gpus": 2, "per_gpu": 2}, "--per-gpu: runs of several GPUs do not share them"),
        ("ab", {"gpus": 3}, "--gpus: 3 requested for one run, 2 in this machine"),
        ("ab", {"jobs": 3}, "--jobs: the GPUs here have room for 2 runs, not 3"),
    ],
)
def test_what_a_machine_does_not_have_is_refused(
    gpus: str, requested: dict[str, int], said: str
) -> None:
    options = {"jobs": None, "gpus": None, "per_gpu": 1, "n_points": 100, **requested}
    with pytest.raises(UserError, match=said):
        slots(8, [*gpus], **options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--slurm time=5 --jobs 2", "--slurm: jobs and GPUs are Slurm's; give --slurm gpus=N"),
        ("--slurm time", "--slurm: time: '' should be a valid integer"),
        ("--slurm partition=main", "--slurm: time: a value is required; give time=VALUE"),
        ("--slurm time=5,gpu=2", "--slurm: gpu: unknown key; did you mean gpus?"),
        ("--slurm time=5,cpus=0", "--slurm: cpus: '0' should be greater than 0"),
        ("--slurm time=5,mem=big", "--slurm: mem: 'big' should be a valid number"),
        ("seed=1 --per-gpu 2 runtime.device=cpu", "--per-gpu: there is no GPU to share"),
        ("--jobs two", "'--jobs': Input should be a valid integer"),
        ("seed=interval(1,2)", "an interval has no points; use range() or a,b"),
    ],
)
def test_options_that_cannot_be_meant_are_one_line(shell: Shell, words: str, said: str) -> None:
    small = [word for word in SMALL if not word.startswith("runtime.root")]
    assert said in shell.error_of("sweep", *small, *shlex.split(words))


def test_a_sweep_within_torchrun_is_refused(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    assert shell.refused("sweep", *SMALL).startswith("sweep: it starts torchrun itself")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_here_is_refused_before_anything_is_written(
    shell: Shell, tmp_path: Path
) -> None:
    line = shell.error_of("sweep", *SMALL, "seed=1,2", "runtime.device=cuda", "--jobs", "1")
    assert line.startswith("seed=1: runtime.device=cuda: there is no GPU in this machine")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("time=60", {"time": 60}),
        ("time=1:00:01,partition=main", {"time": 61, "partition": "main"}),
        ("time=1-02:00:00, gpus = 2", {"time": 26 * 60, "gpus": 2}),
    ],
)
def test_options_of_slurm_are_read(text: str, given: dict[str, object]) -> None:
    assert slurm.options(text).model_dump(exclude_unset=True) == given


@pytest.mark.parametrize(("minutes", "warning"), [(1, "USR2@15"), (600, "USR2@120")])
def test_a_short_limit_is_not_warned_of_before_the_job_has_begun(
    minutes: int, warning: str
) -> None:
    parameters = slurm.options(f"time={minutes}").sbatch
    assert parameters["additional_parameters"]["signal"] == warning


def test_a_job_trains_with_the_cpus_and_gpus_and_in_the_precision_of_its_submission() -> None:
    (point,) = grid("runtime.threads=null", "train.precision=auto")
    words = slurm.Task.of(point, slurm.options("time=5,gpus=2,cpus=8")).arguments
    assert words[-4] == f"train.precision={point.config.train.precision}"
    assert words[-3:] == ("runtime.threads=4", "--gpus", "2")
