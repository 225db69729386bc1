"""Whoever changes what the kernels stand for gets the change."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from redline.algos import critics, ppo, sac
from redline.algos.optimizers import Adam
from redline.engines.cpu import fingerprints, written
from redline.engines.engine import choose_engine
from redline.models.observation_encoder import FlatLeaf
from redline.policies import ActorCritic, SquashedGaussianActor, distributions
from redline.policies.normalizer import RunningMoments
from tests.engines.learners import make


def test_the_table_is_of_the_code_as_it_is() -> None:
    places = sorted({place for each in written.MIRRORED.values() for place in each})
    wrong = [p for p in places if written._fingerprint(p) != fingerprints.FINGERPRINTS.get(p)]
    assert not wrong, (
        f"{wrong} have changed. See that the kernels in engines/cpu compute the same, then run "
        f"python -m redline.engines.cpu.written"
    )
    assert sorted(fingerprints.FINGERPRINTS) == places
    assert [kind for kind in written.MIRRORED if written.change_in(kind) is not None] == []


def eager_because(name: str) -> str:
    engine = choose_engine(make(name), "auto")
    assert engine.name == "eager"
    return engine.reason


@pytest.mark.parametrize(
    ("module", "name", "learner", "said"),
    [
        (critics, "bootstrapped", "sac", "critics.py:bootstrapped was replaced"),
        (sac, "bootstrapped", "sac", "bootstrapped was replaced in redline.algos.sac"),
        (ppo.PPO, "step", "ppo-box", "ppo.py:PPO was replaced"),
        (Adam, "step", "ppo-box", "optimizers.py:Adam was replaced"),
        (ppo, "value_loss", "ppo-box", "ppo.py:value_loss was replaced"),
        (FlatLeaf, "forward", "sac", "observation_encoder.py:FlatLeaf was replaced"),
        (RunningMoments, "forward", "ppo-box", "normalizer.py:RunningMoments was replaced"),
        (ActorCritic, "evaluate_rollout", "ppo-box", "actor_critic.py:ActorCritic was replaced"),
        (distributions.Gaussian, "sample", "sac", "distributions.py:Gaussian was replaced"),
    ],
)
def test_a_function_replaced_at_run_time_runs(
    module: Any, name: str, learner: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose_engine(make(learner), "auto").name == "cpu"
    whole = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args, **more: whole(*args, **more))
    assert said in eager_because(learner)


def test_an_edited_file_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more term in SAC's actor loss; another docstring and other layout are no change."""
    place = "redline.algos.sac:actor_loss"
    read = written._definitions
    known = read("redline.algos.sac")
    text = """
def actor_loss(value: Tensor, entropy: Tensor, alpha: Tensor) -> Tensor:
    '''Another docstring.'''
    return -torch.addcmul(
        value, alpha, entropy).mean(){}
"""
    for more, is_same in (("", True), (" + 0.001 * value.square().mean()", False)):
        edited = written.ast.parse(text.format(more)).body[0]
        changed = {**known, "actor_loss": edited}
        monkeypatch.setattr(
            written,
            "_definitions",
            lambda module, c=changed: c if module == "redline.algos.sac" else read(module),
        )
        written._fingerprint.cache_clear()
        found = written._fingerprint(place)
        assert (found == fingerprints.FINGERPRINTS[place]) is is_same
    said = "algos/sac.py:actor_loss is not what the kernels were written for"
    assert said in eager_because("sac")
    monkeypatch.undo()
    written._fingerprint.cache_clear()
    assert choose_engine(make("sac"), "auto").name == "cpu"


def test_a_wrapped_method_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `functools.wraps` says of itself is what it wraps, and not what runs."""
    step = ppo.PPO.step

    @functools.wraps(step)
    def mine(*args: Any, **more: Any) -> Any:
        return step(*args, **more)

    monkeypatch.setattr(ppo.PPO, "step", mine)
    assert "ppo.py:PPO was replaced" in eager_because("ppo-box")


def test_a_method_set_on_a_class_that_inherits_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    act = SquashedGaussianActor.act
    monkeypatch.setattr(SquashedGaussianActor, "act", lambda *args: act(*args), raising=False)
    assert "SquashedGaussianActor was replaced" in eager_because("sac")
