"""Data-parallel runs: two ranks of half the environments against one process with all."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

import redline
from redline.algos.diayn import DIAYN
from redline.collect import SerialCollector
from redline.devices import kind_of
from redline.envs import EnvSettings
from redline.errors import ClusterError, ConfigError, DeviceError, IncompatibleCheckpointError
from redline.train.checkpoint.checkpoint import load_checkpoint
from redline.train.presets import preset_config
from redline.train.ranks import ALONE, Ranks, joined_ranks, learned_by
from redline.train.runs import placing
from redline.train.runs.execution import execute
from redline.train.runs.given import Given
from redline.train.settings import RunConfig

SETTINGS: dict[str, Any] = {
    "env": "CartPole-v1",
    "num_envs": 4,
    "rollout_length": 16,
    "normalize_obs": True,
    "scale_reward": True,
    "hidden_sizes": [16],
    "total_env_steps": 20 * 64,
    "log_interval": 64,
    "checkpoint_interval": 640,
    "tensorboard": False,
    "quiet": True,
    "num_threads": 1,
}


SHORT: dict[str, Any] = {
    "rollout_length": 4, "scale_reward": None, "batch_size": 8, "replay_ratio": 8.0,
    "learning_starts": 32, "total_env_steps": 64,
}  # fmt: skip


# Every rank runs it: one start of torchrun trains all, each at a port of its own.
PROGRAM = """
import json, os, sys
from redline.cli import main
for port, words in json.loads(sys.argv[1]):
    os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False"}
    code = main(["train", *words])
    if code:
        sys.exit(code)
"""

# What a callback changes must reach both ranks, and nobody but the first may call it.
NOTES = """
import os
class Notes:
    def on_iteration(self, state):
        with open(os.path.join(os.environ["NOTES"], "calls.txt"), "a") as file:
            file.write(os.environ.get("RANK", "0"))
        if state.iteration == 10:
            state.set_hyperparameter("learning_rate", 0.01)
        if state.iteration in (5, 12):
            for parameter in list(state.policy.parameters())[:2]:
                parameter.requires_grad_(state.iteration == 12)
        if state.iteration == 18:
            state.stop("enough")
"""


def _rows(run: Path) -> list[dict[str, str]]:
    with (run / "progress.csv").open() as file:
        return list(csv.DictReader(file))


def _settings(case: str) -> dict[str, Any]:
    own: dict[str, dict[str, Any]] = {
        "ppo": {"num_minibatches": 1, "num_epochs": 2},
        "lstm": {"num_minibatches": 1, "num_epochs": 2, "core": "lstm", "core_size": 8},
        "a2c": {},
        "sac": {
            "env": "Pendulum-v1", "num_envs": 2, "rollout_length": 4, "scale_reward": None,
            "batch_size": 16, "replay_ratio": 16.0, "learning_starts": 40, "total_env_steps": 240,
            "checkpoint_interval": 80,
        },
        "dqn": SHORT | {"target_update_interval": 1, "epsilon_schedule": "ape-x"},
        "diayn": SHORT | {"env": "Pendulum-v1", "normalize_obs": None, "skill_length": 8},
    }  # fmt: skip
    settings = {"algorithm": "ppo" if case == "lstm" else case, **SETTINGS, **own[case]}
    return {name: value for name, value in settings.items() if value is not None}


def _free_ports(count: int) -> list[int]:
    """Of those that the system gives nobody who asks for any: they are bound later, one by one."""
    found: list[int] = []
    for port in random.sample(_never_given(), k=1000):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"of 1000 ports only {len(found)} are free")


def _never_given() -> list[int]:
    given = range(32768, 61000)
    with contextlib.suppress(OSError):
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        given = range(int(first), int(last) + 1)
    ports = [port for port in range(10_000, 30_000) if port not in given]
    return ports if len(ports) >= 1000 else list(range(10_000, 30_000))


@pytest.fixture(scope="module")
def parallel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """20 updates of PPO, with an LSTM too, and of A2C by two ranks; SAC, also in two parts."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "notes.py").write_text(NOTES)
    commands = []
    for case in ("ppo", "lstm", "a2c", "sac", "dqn", "diayn"):
        (folder / f"{case}.json").write_text(json.dumps(_settings(case)))
        own = ["--callback", "notes:Notes"] if case == "a2c" else []
        config = str(folder / f"{case}.json")
        commands.append(["--config", config, "--out", str(folder / case), *own])
    parts = str(folder / "sac in parts")
    sac = ["--config", str(folder / "sac.json"), "--out", parts, "--total-env-steps", "120"]
    commands += [sac, ["--resume", parts, "--total-env-steps", "240", "--quiet"]]
    todo = list(zip(_free_ports(len(commands)), commands, strict=True))
    launcher = ["torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run(
        [sys.executable, "-m", *launcher, str(folder / "program.py"), json.dumps(todo)],
        capture_output=True,
        text=True,
        timeout=600,  # it takes 20 s; two ranks wait for each other wherever cores are short
        check=False,
        env={**os.environ, "NOTES": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    return {Path(words[words.index("--out") + 1]).name: Path(words[3]) for words in commands[:-1]}


@pytest.mark.parametrize("algorithm", ["ppo", "lstm", "a2c"])
def test_two_ranks_equal_one_process_with_all_environments(
    algorithm: str,
    parallel: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also what a callback does: A2C's changes the learning rate, freezes layers, ends the run.

    Layers were frozen on the first rank alone, whose gradients then had another size.
    """
    monkeypatch.syspath_prepend(parallel[algorithm].parent)
    monkeypatch.setenv("NOTES", str(tmp_path))
    settings = _settings(algorithm) | {"accelerate": "eager", "out": tmp_path / "alone"}
    callbacks = ["notes:Notes"] if algorithm == "a2c" else []
    alone = redline.train(settings.pop("algorithm"), callbacks=callbacks, **settings)
    mine, theirs = _rows(tmp_path / "alone"), _rows(parallel[algorithm])
    assert len(mine) == len(theirs) == (18 if callbacks else 20)
    for one, two in zip(mine, theirs, strict=True):
        assert one["env_steps"] == two["env_steps"]
        for name in ("return_mean", "policy_loss", "value_loss", "entropy", "grad_norm"):
            if one[name]:
                assert float(two[name]) == pytest.approx(float(one[name]), rel=2e-3, abs=1e-5), name
    other = redline.load(parallel[algorithm]).policy().state_dict()
    for name, value in alone.policy().state_dict().items():
        torch.testing.assert_close(other[name], value, rtol=1e-3, atol=1e-4)


def test_an_off_policy_run_of_two_ranks_goes_on_to_the_bit(parallel: dict[str, Path]) -> None:
    """Each rank has environments, replay and generators of its own, and all go on."""
    whole, parts = (redline.load(parallel[case]).inspect() for case in ("sac", "sac in parts"))

    assert whole["env_steps"] == parts["env_steps"] == 240
    # 8 in each iteration of 8 env_steps, from the fifth on, which reaches learning_starts.
    assert whole["optimizer_steps"] == parts["optimizer_steps"] == 26 * 8
    assert whole["params_sha256"] == parts["params_sha256"]


@pytest.mark.parametrize(("case", "name"), [("dqn", "epsilon"), ("diayn", "skill")])
def test_environments_explore_as_in_one_process(
    case: str, name: str, parallel: dict[str, Path], tmp_path: Path
) -> None:
    """Ape-X spread its epsilons over each rank's environments, so that with one on each none was
    nearly greedy; skills ended after half of skill_length.
    """
    settings = _settings(case) | {"accelerate": "eager", "out": tmp_path / "alone"}
    redline.train(settings.pop("algorithm"), **settings)
    places = (tmp_path / "alone", parallel[case], parallel[case] / "ranks" / "1")
    alone, first, second = (
        load_checkpoint(max((place / "checkpoints").glob("step_*"))).state["learning"]["conditions"]
        for place in places
    )

    assert alone[name].shape == (4,)
    assert torch.equal(first[name], alone[name][:2])
    assert second[name].shape == (2,)
    if case == "dqn":  # what is logged is the mean over all environments, as in one process
        assert _rows(tmp_path / "alone")[-1]["epsilon"] == _rows(parallel[case])[-1]["epsilon"]
    if case == "dqn":  # skills are drawn from each rank's own stream
        assert torch.equal(second[name], alone[name][2:])


def test_only_the_first_rank_calls_callbacks(parallel: dict[str, Path]) -> None:
    assert (parallel["a2c"].parent / "calls.txt").read_text() == "0" * 18


def test_another_number_of_ranks_is_refused(parallel: dict[str, Path]) -> None:
    with pytest.raises(IncompatibleCheckpointError, match="saved by 2 ranks, and 1 would"):
        redline.train(resume=parallel["ppo"], total_env_steps=2_000, quiet=True)


def _config(algorithm: str, **settings: Any) -> RunConfig:
    from redline.algos.registry import declaration

    return preset_config(declaration(algorithm), "CartPole-v1", "default").replace(**settings)


def test_settings_are_split_and_what_does_not_divide_is_named() -> None:
    ranks = Ranks(1, 2)
    ppo = ranks.share(_config("ppo", num_envs=8, rollout_length=64)).algo
    # 512 samples make 8 minibatches of 64, so that each rank takes 8 steps of 32.
    assert (ppo.num_envs, getattr(ppo, "num_minibatches", None)) == (4, 8)
    dqn = ranks.share(_config("dqn", num_envs=2, batch_size=64, replay_size=1000)).algo
    assert (dqn.num_envs, dqn.batch_size, dqn.replay_size) == (1, 32, 500)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"num_envs=1 and batch_size=33 .* over 2 ranks"):
        ranks.share(_config("dqn", num_envs=1, batch_size=33))
    config = _config("ppo")
    assert ALONE.share(config) is config


def test_what_ranks_cannot_do_is_refused() -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {"eval_async": True, "eval_interval": 10},
        {"target_kl": 0.1},
        {"data": "d.npz"},
        {"device": "cuda:1"},
        {"policy_device": "cuda:0"},
        {"env_device": "cuda:0"},
        {"eval_device": "cuda:1", "eval_interval": 10},
    )
    for settings in wrong:
        with pytest.raises(ConfigError, match="does not go with several ranks"):
            Ranks(0, 2).check(_config("ppo", **settings))
        ALONE.check(_config("ppo", **settings))


def test_ranks_do_not_begin_with_one_replay(tmp_path: Path) -> None:
    """Each read the first rank's part, and all learned from the same transitions."""
    config = _config("dqn", init_from=str(tmp_path), init_parts="weights,replay")
    with pytest.raises(
        ConfigError, match=r"init_parts=.* leave replay out: every rank would begin"
    ):
        Ranks(1, 2).check(config)
    Ranks(1, 2).check(config, is_new=False)  # what began so in an earlier version goes on
    Ranks(1, 2).check(config.replace(init_parts="weights"))
    ALONE.check(config)


def test_threads_are_for_a_ranks_part_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were chosen for the 256 rows of all ranks, of which each learns from 64."""
    rows: list[float] = []
    monkeypatch.setattr(
        placing, "update_multiplications", lambda _, count: rows.append(count) or 0.0
    )
    config = _config("sac", batch_size=256, device="cpu")
    with EnvSettings(env="Pendulum-v1").make(1) as env:
        for ranks in (ALONE, Ranks(1, 4)):
            placing.resolve_threads(config, env, SerialCollector, None, ranks)
    assert rows == [256, 64]


def test_auto_gives_each_rank_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks took cuda:0, and spoke over gloo. Later only games and acting went to cuda:0.

    A rank that could not use cuda:0 fell back to the CPU, whatever the others did.
    """

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
    monkeypatch.setattr(torch, "zeros", fail)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert Ranks(1, 2).own_device(_config("ppo", device="auto")).run.device == "cuda"
    assert ALONE.own_device(_config("ppo", device="auto")).run.device == "auto"
    placed = dict.fromkeys(("policy_device", "env_device", "eval_device"), "auto")
    run = Ranks(1, 2).own_device(_config("ppo", **placed, eval_interval=10)).run
    assert run.device == "cpu"
    assert (run.policy_device, run.env_device, run.eval_device) == ("cuda", "cuda", "cuda")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ClusterError, match=r"rank 1 .* there are 1"), joined_ranks("auto"):
        pass


def test_auto_without_a_gpu_is_the_cpu_for_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Ranks(1, 2).own_device(_config("ppo", device="auto")).run.device == "cpu"


def test_places_that_an_older_run_chose_stay() -> None:
    Ranks(0, 2).check(_config("ppo", env_device="cuda:0"), resumed=True)
    with pytest.raises(ConfigError, match="device=cuda:0 does not go with several ranks"):
        Ranks(0, 2).check(_config("ppo", device="cuda:0"), resumed=True)


@pytest.mark.parametrize(("rank", "taken"), [("1", 1), ("2", 0)])
def test_games_on_a_gpu_beside_a_learner_on_the_cpu_take_the_gpus_in_turn(
    rank: str, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _join(monkeypatch, rank)
    found: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    with joined_ranks("cpu", None, "cuda", None) as ranks:
        assert ranks == Ranks(int(rank), 3)
    assert found == [taken]


@pytest.mark.parametrize(("device", "back_end"), [("cuda", "cpu:gloo,cuda:nccl"), ("cpu", "gloo")])
def test_what_the_host_needs_to_know_goes_by_gloo(
    device: str, back_end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By NCCL a rank whose peer had died waited inside a kernel, deaf to signals."""
    asked = _join(monkeypatch, "0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: None)
    exchanged: list[str] = []

    def gather(own: torch.Tensor) -> list[torch.Tensor]:
        exchanged.append(own.device.type)
        return [own, own, own]

    monkeypatch.setattr("redline.train.ranks.gather_from_ranks", gather)
    monkeypatch.setattr("redline.train.ranks.sum_over_ranks", lambda own: sum(gather(own)))
    with joined_ranks(device) as ranks:
        assert ranks.total(5, None, ()) == (15, None, [])
        assert ranks.all_true(True)
        assert ranks.mean({"loss": 2.0}) == {"loss": 2.0}
    assert asked == [back_end]
    assert exchanged == ["cpu", "cpu", "cpu"]


def test_two_gpus_learn_together(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    settings = _settings("ppo") | {"device": "cuda", "total_env_steps": 4 * 64}
    (tmp_path / "ppo.json").write_text(json.dumps(settings))
    launcher = ["torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "redline"]
    own = ["train", "--config", str(tmp_path / "ppo.json"), "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", *launcher, *own],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert _rows(tmp_path / "run")[-1]["env_steps"] == "256"


def _join(monkeypatch: pytest.MonkeyPatch, rank: str) -> list[str]:
    """Pretend that rank of three; gives the back ends that are asked for."""
    asked: list[str] = []
    for name, value in (("WORLD_SIZE", "3"), ("RANK", rank), ("LOCAL_RANK", rank)):
        monkeypatch.setenv(name, value)
    distributed = torch.distributed
    monkeypatch.setattr(distributed, "init_process_group", lambda name, **_: asked.append(name))
    monkeypatch.setattr(distributed, "destroy_process_group", lambda: None)
    monkeypatch.setattr(distributed, "get_rank", lambda: int(rank))
    return asked


def test_a_gpu_of_a_rank_that_does_not_work_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is learned on the CPU instead."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(kind_of("cuda"), "why_failing", lambda device: "all of them are busy")
    config = _config("ppo", device="auto", env="CartPole-v1")
    with pytest.raises(DeviceError, match=r"device='cuda' .*all of them are busy"):
        execute(config, tmp_path, Given(), checkpoint=None, recording=None, ranks=Ranks(1, 2))


def test_every_parameter_that_an_optimizer_changes_is_found_once() -> None:
    class Learner:
        def __init__(self) -> None:
            self.network = torch.nn.Linear(2, 1)
            self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1)
            self.again = torch.optim.SGD([self.network.weight], lr=0.1)

    assert len(learned_by(Learner())) == 2


def test_parameters_of_an_algorithm_inside_another_are_found() -> None:
    """DIAYN's own optimizer is that of its discriminator; actor and critics are SAC's, inside."""
    algorithm = DIAYN.make(
        gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Box(-1, 1, (1,)), DIAYN.Config(),
        hidden_sizes=(4,), seed=0,
    )  # fmt: skip
    found = {id(parameter) for parameter in learned_by(algorithm)}
    assert {id(p) for p in algorithm.sac.policy.parameters()} <= found
    assert {id(p) for p in algorithm.sac.critic.parameters()} <= found
    assert {id(p) for p in algorithm.discriminator.parameters()} <= found
