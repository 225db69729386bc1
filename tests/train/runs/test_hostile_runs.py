"""Run directories of strangers: nothing is followed, run, decided or overlooked."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import redline
from redline.cli import main
from redline.envs import make_vec
from redline.errors import (
    ConfigError,
    CorruptCheckpointError,
    EnvError,
    RedlineError,
    RunDirectoryError,
)
from redline.launch.run_process import newest_numbers
from redline.train.checkpoint import checkpoint as checkpoint_module
from redline.train.checkpoint.checkpoint import load_checkpoint, save_checkpoint
from redline.train.checkpoint.store import CheckpointStore
from redline.train.runs import recorded_data
from redline.train.runs.outside_settings import require_confirmed
from redline.train.runs.run_directory import read_config
from redline.train.runs.sealed_files import write_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 256 env_steps with two checkpoints and two rows."""
    out = tmp_path_factory.mktemp("runs") / "run"
    redline.train(
        "ppo",
        env="CartPole-v1",
        out=out,
        total_env_steps=256,
        num_envs=2,
        rollout_length=64,
        hidden_sizes=(8,),
        log_interval=128,
        checkpoint_interval=128,
        tensorboard=False,
        quiet=True,
    )
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def go_on(run: Path, total: int = 384, **settings: Any) -> redline.Run:
    return redline.train(resume=run, total_env_steps=total, quiet=True, **settings)


def newest(run: Path) -> Path:
    return CheckpointStore(run / "checkpoints").list()[-1]


def edit_state(run: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the newest checkpoint's state and sign it again, as a stranger can."""
    path = newest(run)
    found = load_checkpoint(path)
    edit(found.state)
    shutil.rmtree(path)
    save_checkpoint(
        path, found.step, found.state, metadata=found.metadata, run_files=found.run_files
    )


def edit_config(run: Path, **settings: Any) -> None:
    """Change settings as an editor does; hashes are left as they are."""
    config = json.loads((run / "config.json").read_text())
    for name, value in settings.items():
        part = next(part for part in ("run", "policy", "algo") if name in config[part])
        config[part][name] = value
    (run / "config.json").write_text(json.dumps(config, indent=2))


# -- links and special files ------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """What a link may lead to: things that Redline would delete in its own directory."""
    place = tmp_path / "elsewhere"
    for name in (".tmp-precious", "step_000000000900", "step_000000000001", "best"):
        (place / name).mkdir(parents=True)
        (place / name / "file").write_text("precious")
    return place


def contents(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard", "videos", "progress.csv", "replay"])
def test_a_link_in_a_run_directory_is_refused_and_its_target_untouched(
    name: str, run: Path, elsewhere: Path
) -> None:
    """A link named `checkpoints` made --resume delete `.tmp-*` and `step_*` in its target."""
    if (run / name).is_dir():
        shutil.rmtree(run / name)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(elsewhere)
    before = contents(elsewhere)
    with pytest.raises(RunDirectoryError, match=f"{name} is a symbolic link"):
        go_on(run)
    with pytest.raises(RunDirectoryError, match=f"{name} is a symbolic link"):
        redline.load(run)
    (run / "config.json").unlink()
    with pytest.raises(RunDirectoryError, match=f"{name} is a symbolic link"):
        redline.train("ppo", env="CartPole-v1", out=run, quiet=True)
    assert contents(elsewhere) == before


@pytest.mark.parametrize("name", ["config.json", "progress.csv", "checkpoints/odd", ".lock"])
def test_a_fifo_is_refused_instead_of_waited_for(
    name: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    assert main(["train", "--resume", str(run), "--quiet"]) == 2
    assert f"{name} is a fifo" in capsys.readouterr().err


def test_the_store_follows_no_link_even_if_nobody_looked(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "checkpoints").symlink_to(elsewhere)
    before = contents(elsewhere)
    store = CheckpointStore(tmp_path / "checkpoints")
    with pytest.raises(RunDirectoryError):
        store.clean_leftovers()
    with pytest.raises(RunDirectoryError):
        store.save(5, {"a": 1}, {"env_steps": 5})
    assert contents(elsewhere) == before


def test_a_file_of_a_checkpoint_that_became_a_link_is_corrupt(run: Path) -> None:
    path = newest(run)
    (path / "state.json").rename(path / "other.json")
    (path / "state.json").symlink_to("other.json")
    with pytest.raises(CorruptCheckpointError, match=r"state\.json is not a regular file"):
        load_checkpoint(path)


@pytest.mark.parametrize("limit", [10])
def test_a_manifest_of_gigabytes_is_refused_by_its_size(
    limit: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_module, "MANIFEST_LIMIT", limit)
    with pytest.raises(CorruptCheckpointError, match="at most 10"):
        load_checkpoint(newest(run))


# -- what a signed state may hold -------------------------------------------------------------


def spoil_numpy(state: dict[str, Any]) -> None:
    state["rng"]["numpy"]["state"]["pos"] = 10**9


def spoil_torch(state: dict[str, Any]) -> None:
    state["rng"]["torch"][16:20] = 255


def spoil_algorithm(state: dict[str, Any]) -> None:
    state["algorithm"]["generator"][8:12] = 255


def spoil_noise(state: dict[str, Any]) -> None:
    noise = state["collector"]["actor"]["noise"] if "actor" in state["collector"] else None
    generators = noise or _find(state["collector"], "noise")
    generators[0] = np.random.Philox(1).state | {"buffer_pos": 10**9}


def spoil_env(state: dict[str, Any]) -> None:
    env = _find(state["collector"], "simulators")["envs"][0]
    twister = np.random.MT19937(1).state
    twister["state"]["pos"] = 10**9
    pairs = [
        ["bit_generator", "MT19937"],
        ["state", {"__dict__": [["key", twister["state"]["key"]], ["pos", 10**9]]}],
    ]
    env["inner"]["_np_random"] = {"__generator__": {"__dict__": pairs}}


def spoil_name(state: dict[str, Any]) -> None:
    _find(state["collector"], "simulators")["envs"][0]["inner"]["render"] = 1


def spoil_shape(state: dict[str, Any]) -> None:
    _find(state["collector"], "simulators")["envs"][0]["inner"]["state"] = np.zeros(9)


def _find(tree: Any, name: str) -> Any:
    """The first entry of that name, wherever it lies."""
    if isinstance(tree, dict):
        if name in tree:
            return tree[name]
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        return next((found for item in tree if (found := _find(item, name)) is not None), None)
    return None


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_numpy, "pos=1000000000"),
        (spoil_torch, "torch"),
        (spoil_algorithm, "torch"),
        (spoil_noise, "Philox"),
    ],
)
def test_a_signed_state_out_of_range_is_refused(
    spoil: Callable[[dict[str, Any]], None], said: str, run: Path
) -> None:
    """Generators beyond their words crashed the interpreter; any attribute could be set."""
    edit_state(run, spoil)
    with pytest.raises(RedlineError, match=said):
        go_on(run)


COMMANDS = {
    "resume": ("train", "--resume", "{}", "--quiet", "--total-env-steps", "384"),
    "inspect": ("inspect", "{}"),
    "eval": ("eval", "{}", "--episodes", "1"),
    "init_from": (
        "train", "ppo", "--env", "CartPole-v1", "--init-from", "{}", "--out", "{}-new", "--quiet",
        "--hidden-sizes", "8",
    ),
}  # fmt: skip


def refused(command: str, run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says; it must end with the status of a refusal."""
    assert main([word.format(run) for word in COMMANDS[command]]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (None, "metadata.algorithm is None"),
        ({"env_steps": "x"}, "metadata.env_steps is 'x'"),
        ({"env_steps": float("nan")}, "metadata.env_steps is nan"),
        ({"ranks": "x"}, "metadata.ranks is 'x'"),
        ({"ranks": 0}, "metadata.ranks is 0"),
        ({"env": [[1] * 9] * 100_000}, "metadata.env is [["),
        ({"stop_reason": {"a": 1}}, "metadata.stop_reason is"),
    ],
)
@pytest.mark.parametrize("command", ["resume", "inspect", "eval"])
def test_metadata_of_another_kind_is_refused(
    command: str,
    change: dict[str, Any] | None,
    said: str,
    run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """These ended in a KeyError's or a TypeError's traceback."""
    path = newest(run)
    found = load_checkpoint(path)
    shutil.rmtree(path)
    metadata = {} if change is None else {**found.metadata, **change}
    save_checkpoint(path, found.step, found.state, metadata=metadata, run_files=found.run_files)
    message = refused(command, run, capsys)
    assert said in message
    assert len(message) < 1000


def no_algorithm(state: dict[str, Any]) -> None:
    del state["algorithm"]


def number_for_algorithm(state: dict[str, Any]) -> None:
    state["algorithm"] = 5


def list_for_policy(state: dict[str, Any]) -> None:
    state["algorithm"]["policy"] = [1]


def text_for_a_tensor(state: dict[str, Any]) -> None:
    state["algorithm"]["policy"][next(iter(state["algorithm"]["policy"]))] = "x"


@pytest.mark.parametrize("command", ["resume", "inspect", "eval", "init_from"])
@pytest.mark.parametrize(
    "spoil", [no_algorithm, number_for_algorithm, list_for_policy, text_for_a_tensor]
)
def test_an_algorithm_of_another_kind_is_refused(
    spoil: Callable[[dict[str, Any]], None],
    command: str,
    run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if (spoil, command) == (text_for_a_tensor, "init_from"):
        pytest.skip("what does not fit is left out there, and said")
    edit_state(run, spoil)
    assert "Error: " in refused(command, run, capsys)


@pytest.mark.parametrize(
    "change",
    [
        {"steps_beyond_terminated": {}},
        {"steps_beyond_terminated": {"__set__": [1]}},
        {"state": None},
        {"tau": 2**3000},
    ],
)
def test_an_attribute_that_no_step_takes_is_refused(change: dict[str, Any], run: Path) -> None:
    """These ended in a StopIteration, or in an error of the environment's first step."""
    edit_state(run, lambda s: _find(s["collector"], "envs")[0]["inner"].update(change))
    with pytest.raises(CorruptCheckpointError, match="CartPole-v1, environment 0"):
        go_on(run)


class Picky(gymnasium.Env[Any, Any]):
    """Its own errors may be of any kind, as those of ALE for an empty state are."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> Any:
        return 0, 0.0, False, False, {}

    def get_state(self) -> Any:
        return 1

    def set_state(self, state: Any) -> None:
        if state != 1:
            raise SystemError("error return without exception set")


def test_whatever_an_environment_makes_of_a_foreign_state_is_a_refusal() -> None:
    envs = make_vec(Picky, 1, backend="gymnasium")
    envs.reset(0)
    state = envs.state_dict()
    envs.load_state_dict(state)
    state["simulators"]["envs"][0]["inner"] = 2
    with pytest.raises(CorruptCheckpointError, match=r"cannot be taken \(SystemError"):
        envs.load_state_dict(state)
    envs.close()


@pytest.mark.parametrize(
    ("part", "value"),
    [("episodes", {"infos": "x"}), ("episodes", 7), ("counters", []), ("metrics", None),
     ("rng", "x"), ("last_evaluation", 3), ("staleness", 7),
     ("metrics", {"totals": {}, "count": ""})],
)  # fmt: skip
def test_a_signed_state_of_another_kind_is_refused(part: str, value: Any, run: Path) -> None:
    """Some of these ended in an AttributeError's traceback."""
    edit_state(run, lambda state: state.update({part: value}))
    with pytest.raises(RedlineError):
        go_on(run)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_env, "generator MT19937, and here it is a generator PCG64"),
        (spoil_name, "sets 'render', which this environment does not have"),
        (spoil_shape, "'state' is an array of float64 and shape (9,), and here"),
    ],
)
def test_an_environment_takes_no_foreign_state(
    spoil: Callable[[dict[str, Any]], None],
    said: str,
    run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As where a state does not fit: fresh episodes, and a warning that says why."""
    edit_state(run, spoil)
    go_on(run)
    warning = capsys.readouterr().err
    assert said in warning
    assert "begin fresh episodes" in warning


class Bonus(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Has an attribute only after its first step."""

    def step(self, action: Any) -> Any:
        self.bonus = getattr(self, "bonus", 0) + 1
        return super().step(action)


def test_an_attribute_that_the_first_step_makes_is_restored() -> None:
    def make() -> gymnasium.Env[Any, Any]:
        return Bonus(gymnasium.make("CartPole-v1"))

    with make_vec(make, 1) as env, make_vec(make, 1) as other:
        env.reset(1)
        env.step(np.array([1]))
        env.step(np.array([0]))
        state = env.state_dict()
        other.load_state_dict(state)
        restored = other.state_dict()["simulators"]["envs"][0]
        assert restored["wrappers"] == state["simulators"]["envs"][0]["wrappers"]
        wrapper = state["simulators"]["envs"][0]["wrappers"][0]
        assert wrapper["bonus"] == 2
        wrapper["step"] = 1
        with pytest.raises(EnvError, match="sets 'step'"):
            other.load_state_dict(state)


# -- settings that reach outside --------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "confirmation", "option"),
    [
        ({"wandb": True}, {"wandb": True}, "--wandb"),
        ({"accelerate": "compile"}, {"accelerate": "compile"}, "--accelerate 'compile'"),
        (
            {"env_kwargs": '{"xml_file": "robot.xml"}'},
            {"env_kwargs": {"xml_file": "robot.xml"}},
            '--env-kwargs \'{"xml_file": "robot.xml"}\'',
        ),
        ({"env_kwargs": '{"a": [{"b": "/etc/x"}]}'}, {"env_kwargs": '{"a":[{"b":"/etc/x"}]}'}, ""),
    ],
)
def test_settings_that_reach_outside_must_be_confirmed(
    setting: dict[str, Any], confirmation: dict[str, Any], option: str, run: Path
) -> None:
    config = read_config(run).replace(**setting)
    write_config(run, config)
    with pytest.raises(ConfigError, match="a run directory alone must not decide") as refused:
        go_on(run, accept_changed_config=True)
    assert option in str(refused.value)
    text = {k: v if k != "env_kwargs" else json.dumps(v) for k, v in confirmation.items()}
    text = {
        k: v if not isinstance(confirmation[k], str) else confirmation[k] for k, v in text.items()
    }
    require_confirmed(config, text)
    with pytest.raises(ConfigError, match="not what the run was begun with"):
        require_confirmed(config, dict.fromkeys(setting, '{"other": 1}'))


@pytest.mark.parametrize("name", ["init_from", "data"])
def test_no_file_is_opened_that_only_the_directory_names(
    name: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that has not trained yet starts again, and would read both."""
    shutil.rmtree(run / "checkpoints")
    (run / "history.jsonl").unlink()
    secret = run.parent / "secret"
    write_config(run, read_config(run).replace(**{name: str(secret)}))
    if name == "data":  # of an algorithm that has a use for it
        monkeypatch.setattr(recorded_data, "_require_sense", lambda *_: None)
    with pytest.raises(ConfigError, match="a run directory alone must not decide") as refused:
        go_on(run, accept_changed_config=True)
    assert f"--{name.replace('_', '-')} '{secret}'" in str(refused.value)
    with pytest.raises(RedlineError, match=r"is not a run directory|there is no"):  # now it looks
        go_on(run, accept_changed_config=True, **{name: secret})


@pytest.mark.parametrize(
    "kwargs", ["{}", '{"gravity": 5.0}', '{"map_name": "8x8"}', '{"render_mode": "human"}']
)
def test_settings_that_stay_inside_need_no_confirmation(kwargs: str, run: Path) -> None:
    require_confirmed(read_config(run).replace(env_kwargs=kwargs), {})


def test_an_evaluation_opens_no_file_that_only_the_directory_names(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(run, read_config(run).replace(env_kwargs='{"xml_file": "/etc/passwd"}'))
    assert main(["eval", str(run), "--accept-changed-config"]) == 2
    assert "xml_file='/etc/passwd'" in capsys.readouterr().err


@pytest.fixture
def little_memory() -> Iterator[None]:
    """A gigabyte beyond what this process has: what reads a file whole ends in a MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("keep", [0, 20])
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits memory by it")
def test_a_table_of_gigabytes_is_not_read(
    keep: int, run: Path, little_memory: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a file without line ends all was taken for its first row: 5.7 GB of memory."""
    path = run / "progress.csv"
    path.write_bytes(path.read_bytes()[:keep])
    os.truncate(path, 20 * 2**30)
    assert main(["train", "--resume", str(run), "--quiet", "--total-env-steps", "384"]) == 2
    assert "which no table of a run has" in capsys.readouterr().err
    assert newest_numbers(run) == {}
    assert main(["runs", str(run)]) == 0


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits memory by it")
def test_what_follows_the_rows_of_a_checkpoint_is_cut_off_whatever_its_size(
    run: Path, little_memory: None
) -> None:
    """A run that logs each second has gigabytes of rows after some weeks, and is to go on."""
    path = run / "progress.csv"
    rows = path.read_bytes()
    os.truncate(path, 20 * 2**30)
    assert main(["train", "--resume", str(run), "--quiet", "--total-env-steps", "384"]) == 0
    assert path.read_bytes().startswith(rows)
    assert path.stat().st_size < 10 * len(rows)


def test_what_a_manifest_says_of_other_files_is_checked(run: Path) -> None:
    path = newest(run)
    found = load_checkpoint(path)
    cases: tuple[tuple[str, str, Any], ...] = (
        ("progress.csv", "columns", "x"),
        ("config.json", "settings", "x"),
        ("config.json", "settings", {"algo": 3}),
        ("config.json", "settings", {"run": ["cpu"]}),
        ("config.json", "settings", {"run": {"device": None}}),
    )
    for name, field, value in cases:
        files = {key: dict(entry) for key, entry in found.run_files.items()}
        files[name][field] = value
        shutil.rmtree(path)
        save_checkpoint(path, found.step, found.state, metadata=found.metadata, run_files=files)
        with pytest.raises(CorruptCheckpointError, match="malformed"):
            load_checkpoint(path)


# -- everything is signed ---------------------------------------------------------------------


def test_a_changed_setting_is_named_and_can_be_accepted(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flipped bit in config.json resumed with other hyperparameters."""
    edit_config(run, learning_rate=0.5)
    assert main(["train", "--resume", str(run), "--total-env-steps", "384", "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "config.json was changed" in said
    assert "--accept-changed-config" in said
    for command in ("eval", "inspect"):
        assert main([command, str(run)]) == 2
    for out in ([], ["--accept-changed-config"]):
        arguments = ["train", "--resume", str(run), "--total-env-steps", "384", "--quiet", *out]
        assert main(arguments) == (0 if out else 2)
    assert redline.load(run).config.algo.learning_rate == 0.5
    go_on(run, 512)  # the new checkpoint was written beside the new settings


def test_the_config_of_another_run_is_told_by_the_settings_that_differ(run: Path) -> None:
    write_config(run, read_config(run).replace(gamma=0.5, seed=7))
    with pytest.raises(ConfigError, match=r"seed was 1 and is 7; gamma was 0\.98 and is 0\.5"):
        go_on(run)
    with pytest.raises(ConfigError, match="seed was 1"):
        redline.load(run).evaluate(1)


@pytest.mark.parametrize("every", [1, 7])
def test_a_flipped_bit_of_config_json_is_named(run: Path, every: int) -> None:
    """Of each so many bytes one bit: refused, or without any effect on the settings."""
    data = (run / "config.json").read_bytes()
    config = read_config(run)
    for position in range(0, len(data), every):
        spoiled = bytearray(data)
        spoiled[position] ^= 1 << position % 8
        (run / "config.json").write_bytes(spoiled)
        try:
            assert read_config(run) == config, f"byte {position}"
        except RedlineError:
            continue


def test_a_run_stopped_before_its_first_new_checkpoint_goes_on(run: Path) -> None:
    """Resuming writes config.json first; what it may change there is no damage."""
    write_config(run, read_config(run).replace(total_env_steps=384, accelerate="eager"))
    assert go_on(run).inspect()["env_steps"] == 384


def test_changed_rows_are_found_up_to_the_checkpoint(run: Path) -> None:
    path = run / "progress.csv"
    whole = path.read_text()
    path.write_text(whole + "1,2,3\n")  # rows after the checkpoint's are cut off anyhow
    go_on(run)
    text = path.read_text()
    assert text.startswith(whole)
    path.write_text(text.replace("128", "129", 1))
    with pytest.raises(RunDirectoryError, match=r"progress\.csv was changed .*--accept-changed"):
        go_on(run, 512)
    go_on(run, 512, accept_changed_config=True)


def test_files_of_before_are_taken_without_hashes(run: Path) -> None:
    """Version 0.1 wrote none, and tests/compatibility resumes such runs."""
    path = newest(run)
    found = load_checkpoint(path)
    shutil.rmtree(path)
    save_checkpoint(path, found.step, found.state, metadata=found.metadata)
    config = json.loads((run / "config.json").read_text())
    del config["sha256"], config["build"]
    (run / "config.json").write_text(json.dumps(config))
    go_on(run)


# -- same build, same bits --------------------------------------------------------------------


def test_another_build_is_named_at_resume(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build = json.loads((run / "config.json").read_text())["build"]
    assert set(build) == {"redline", "torch", "numpy", "machine", "kernels"}
    go_on(run)
    assert "another build" not in capsys.readouterr().err
    monkeypatch.setattr("redline.engines.cpu.kernel_instructions", lambda: "avx1024")
    redline.train(resume=run, total_env_steps=512)
    assert f"kernels {build['kernels']} (here avx1024)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [b"env_steps,return_mean\n256,abc\n", b"\xff\xfe\n256,1\n", b"a" * 131_073 + b"\n256\n"],
    ids=["a-word-for-a-number", "a-header-that-is-no-text", "a-header-that-csv-refuses"],
)
def test_a_damaged_table_does_not_cost_an_evaluation(
    damage: bytes, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was read for a note after all episodes had run, and they were lost with it."""
    (run / "progress.csv").write_bytes(damage)
    assert main(["eval", str(run), "--episodes", "2", "--max-episode-steps", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 2
