"""Predictions against sums done by hand."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest

from redline.errors import SessionError
from redline.profile.advise import remedies
from redline.profile.advise.check import Checked, remedy_between, render_check
from redline.profile.advise.iteration import Iteration, Part, Time, _cpus_of
from redline.profile.advise.rates import Range, Rates
from redline.profile.advise.remedies import REMEDIES, Advice, advise
from redline.profile.advise.report import advice_to_json, render_advice
from redline.profile.advise.stretches import OnGpu
from redline.profile.reader import Session

RATES = Rates(
    fused_step=Range(0.25, 0.36),
    foreach_step=Range(0.5, 0.7),
    batched_inference=Range(1.0, 1.0),
    doubled_batch=Range(1.2, 1.6),
    one_thread=Range(0.8, 0.9),
    ipc_us=Range(50.0, 100.0),
    threads=2,
)


def iteration(times: dict[str, dict[str, float]], **other: Any) -> Iteration:
    """An env step of these us, by operation and level, each known to 1%."""
    parts = {
        name: Part(name, row, Time(sum(row.values()), 0.01 * sum(row.values())))
        for name, row in times.items()
    }
    total = sum(part.time.us for part in parts.values())
    made = Iteration(
        process="main",
        pid=1,
        framework="SB3",
        mode="full",
        env_steps=1000,
        num_envs=1,
        workers=0,
        cpus=2,
        begin_s=1.0,
        end_s=2.0,
        parts=parts,
        total=Time(total, 0.01 * total),
        ready_us=0.0,
        optimizer_us=math.nan,
    )
    return dataclasses.replace(made, **other)


USUAL = {
    "simulation": {"simulator": 100.0},
    "inference": {"python": 80.0, "backend": 120.0},
    "backpropagation": {"backend": 400.0},
    "other": {"python": 200.0},
    "logging": {"python": 100.0},
}


def found(it: Iteration) -> dict[str, Advice]:
    return {each.remedy: each for each in advise(it, RATES)}


def test_batched_inference_is_paid_once_for_eight() -> None:
    """200 us of inference become 25 where a batch of 8 costs what one does; of 200 us between calls
    an eighth to 9/16 stay; so 262.5 to 350 of 1,000 are saved."""
    envs = found(iteration(USUAL))["envs"]
    assert envs.predicted_us == pytest.approx(1000 - 306.25)
    half = math.hypot(10 * 0.69375, 43.75, 0.15 * 306.25)  # no model is exact
    assert (envs.low_us, envs.high_us) == pytest.approx((693.75 - half, 693.75 + half))
    assert "n_envs=8" in envs.how


def test_buffers_and_vector_envs_are_paid_once_in_part() -> None:
    """Of 80 us of replay 0 to 70 go, of 100 us of the env's Python 0 to 87.5."""
    more = {**USUAL, "simulation": {"simulator": 100.0, "python": 100.0}}
    envs = found(iteration({**more, "replay": {"python": 80.0}}))["envs"]
    assert envs.before_us - envs.predicted_us == pytest.approx(306.25 + 35 + 43.75)


def test_envs_in_this_process_take_what_the_workers_worked() -> None:
    """Of 500 us of simulation 400 are waiting, for workers that take 60 us an env step: 0.6 * 60 =
    36 to 1.2 * 60 + 100 = 172 us stay, 104 in the middle. So 396 of 1,400 us go. Where four workers
    have two cores, they keep the learner from its core, too: 0 to 0.2 * 900 us more go."""
    told = {**USUAL, "simulation": {"python": 100.0, "waiting": 400.0}}
    workers = found(iteration(told, workers=4, cpus=8, num_envs=4, worker_busy_us=60.0))
    assert workers["in-process"].predicted_us == pytest.approx(1400 - 396)
    crowded = found(iteration(told, workers=4, cpus=2, num_envs=4, worker_busy_us=60.0))
    assert crowded["in-process"].predicted_us == pytest.approx(1400 - 396 - 90)
    assert "without SubprocVecEnv" in workers["in-process"].how
    assert "workers" not in workers
    assert "in-process" not in found(iteration(USUAL))


def test_slow_envs_stay_in_their_workers() -> None:
    """2,000 us of a worker for each env step would take longer here than the 500 of waiting."""
    told = {**USUAL, "simulation": {"python": 100.0, "waiting": 400.0}}
    slow = found(iteration(told, workers=4, num_envs=4, worker_busy_us=2000.0))["in-process"]
    assert not slow.known or slow.predicted_us > slow.before_us


def test_workers_that_act_are_waited_for_while_collecting() -> None:
    """400 us of waiting go; 60 us of a worker for each env step become 36 to 72 here."""
    told = {"collection": {"python": 50.0, "waiting": 400.0}, "backpropagation": {"backend": 550.0}}
    it = iteration(told, workers=2, num_envs=4, cpus=4, worker_busy_us=60.0, framework="Redline")
    advice = found(it)["in-process"]
    assert advice.predicted_us == pytest.approx(1000 - (328 + 364) / 2)
    assert advice.known
    assert advice.how == "--collector serial"


def test_a_gain_that_is_unknown_is_at_most_what_the_remedy_touches() -> None:
    """Of 10 us of logging at most 9.5 go, however noisy the rest is."""
    it = iteration({**USUAL, "logging": {"python": 10.0}}, total=Time(910.0, 400.0))
    advice = found(it)["logging"]
    assert not advice.known
    assert "log a tenth as often: at most 9.5 of 910.0 us" in render_advice(it, [advice])


def test_a_fused_step_touches_the_optimizer_only() -> None:
    """Of 100 us 95 are steps, of which 25 to 36% stay: 28.75 to 39.2 us, so 66.025 are saved."""
    it = iteration(USUAL, optimizer_us=100.0)
    assert found(it)["fused"].predicted_us == pytest.approx(1000 - 66.025)
    assert "fused" not in found(iteration(USUAL))


def test_what_is_fused_already_is_not_advised_again() -> None:
    it = iteration(USUAL, optimizer_us=100.0)
    plain = dataclasses.replace(it, optimizers=("Adam", "AdamW"))
    assert {"fused", "foreach"} <= set(found(plain))
    assert "plain Adam and AdamW" in found(plain)["fused"].assumes
    assert not {"fused", "foreach"} & set(found(dataclasses.replace(it, optimizers=("SGD",))))
    assert not {"fused", "foreach"} & set(
        found(dataclasses.replace(it, optimizers=("Adam", "Adam fused")))
    )
    looped = found(dataclasses.replace(it, optimizers=("Adam foreach",)))
    assert "fused" in looped
    assert "foreach" not in looped


def test_a_program_on_one_thread_cannot_have_fewer() -> None:
    assert "threads" in found(iteration(USUAL))
    assert "threads" in found(iteration(USUAL, torch_threads=2))
    assert "threads" not in found(iteration(USUAL, torch_threads=1))


def test_where_the_gpu_learns_no_rate_of_a_cpu_is_applied() -> None:
    it = iteration(USUAL, optimizer_us=100.0)
    assert {"fused", "foreach", "threads"} <= set(found(it))
    there = dataclasses.replace(it, gpu=OnGpu(busy=0.3))
    assert not {"fused", "foreach", "threads"} & set(found(there))


def test_doubts_are_printed() -> None:
    it = iteration(USUAL, problems=["the probe's cost is not known well"])
    text = render_advice(it, advise(it, RATES))
    assert "note: the probe's cost is not known well" in text
    assert advice_to_json(it, [])["problems"] == ["the probe's cost is not known well"]


def test_what_may_gain_nothing_is_not_predicted() -> None:
    """A compiler takes 0 to half of 400 us: at most 200, and what the total's interval adds."""
    it = iteration(USUAL)
    compiled = found(it)["compile"]
    assert not compiled.known
    assert "torch.compile: at most 2" in render_advice(it, [compiled])


def test_twice_the_batch_at_equal_samples() -> None:
    """Native calls of twice the batch take 1 to 1.6 of one, for half as many: 0.5 to 0.8 of 400."""
    assert found(iteration(USUAL))["batches"].predicted_us == pytest.approx(1000 - 140)


def test_twice_the_batch_halves_the_python_between_calls() -> None:
    """80 of 120 us of learning are Python: 40 go, and 0.2 to 0.5 of the 440 native ones: 154."""
    it = iteration({**USUAL, "learning": {"python": 80.0, "backend": 40.0}})
    batches = found(it)["batches"]
    assert batches.before_us - batches.predicted_us == pytest.approx(40 + 154)


def test_half_as_many_updates_take_half_as_many_steps_of_the_optimizer() -> None:
    """Of 400 us 100 are the optimizer's, which halve: 50, and 0.2 to 0.5 of 300: 105 on average."""
    it = iteration(USUAL, optimizer_us=100.0)
    assert found(it)["batches"].predicted_us == pytest.approx(1000 - 155)


def test_an_interval_holds_what_the_probe_may_have_cost() -> None:
    """If the probe cost 50 of the 100 us of logging, 95.4% of an env step are left, not 91.25%."""
    usual = iteration(USUAL)
    least = iteration({**USUAL, "logging": {"python": 50.0}})
    advice = found(dataclasses.replace(usual, extremes=(least, usual)))["logging"]
    assert advice.predicted_us == pytest.approx(912.5)
    spread = 1000 * ((950 - 43.75) / 950 - 0.9125)
    half = math.hypot(10 * 0.9125, 7.5, spread, 0.15 * 87.5)
    assert advice.high_us == pytest.approx(912.5 + half)


def test_overlap_hides_the_smaller_half() -> None:
    """Of 300 us of collecting 40% to 95%, beside 400 us of learning; one core cannot."""
    assert found(iteration(USUAL))["overlap"].predicted_us == pytest.approx(1000 - 202.5)
    assert "overlap" not in found(iteration(USUAL, cpus=1))
    # A run that collects ahead already was told to, as a gain that is known.
    assert "overlap" in found(iteration(USUAL, collector="serial"))
    assert "overlap" not in found(iteration(USUAL, collector="async"))


def test_small_gains_are_unknown_and_come_last() -> None:
    it = iteration({**USUAL, "logging": {"python": 5.0}})
    all_advice = advise(it, RATES)
    logging = next(each for each in all_advice if each.remedy == "logging")
    assert not logging.known
    known = [each.known for each in all_advice]
    assert known == sorted(known, reverse=True)
    gains = [each.predicted_us for each in all_advice if each.known]
    assert gains == sorted(gains)


def test_what_needs_a_gpu_or_rates_is_not_advised_without() -> None:
    assert not {"graphs", "replay"} & found(iteration(USUAL)).keys()
    without = {each.remedy for each in advise(iteration(USUAL, optimizer_us=9.0), None)}
    assert not {"fused", "foreach", "threads", "batches", "workers"} & without


def test_graphs_gain_what_the_gpu_idles_while_the_update_launches() -> None:
    """Of 400 us of update the GPU idles 240, and 160 launch: 0.3 * 160 to 240 us go."""
    it = iteration(USUAL, gpu=OnGpu(busy=0.3, launching=0.4, idle=0.6))
    graphs = found(it)["graphs"]
    assert graphs.before_us - graphs.predicted_us == pytest.approx((48 + 240) / 2)
    for without in ({"launching": 0.0}, {"replays": True}):  # nothing to launch, or done already
        gpu = dataclasses.replace(OnGpu(busy=0.3, launching=0.4, idle=0.6), **without)
        assert "graphs" not in found(iteration(USUAL, gpu=gpu))


def test_the_text_names_the_largest_first_and_the_json_is_plain() -> None:
    it = iteration(USUAL)
    text = render_advice(it, advise(it, RATES))
    assert text.startswith("main (pid 1) takes 1,000.0 +- 10.0 us per env step")
    assert "1. 8 envs per process: inference in batches" in text
    content = advice_to_json(it, advise(it, RATES))
    assert content["us_per_env_step"]["us"] == 1000.0
    assert content["optimizer_us_per_env_step"] is None
    assert {each["remedy"] for each in content["remedies"]} <= set(REMEDIES)


@pytest.mark.parametrize(
    ("before", "after", "remedy"),
    [
        ("python a.py", "python a.py --fused", "fused"),
        ("python a.py --n-envs 1", "python a.py --n-envs 8", "envs"),
        ("python a.py", "env OMP_NUM_THREADS=1 python a.py", "threads"),
        ("python a.py", "python a.py --vec subproc", "workers"),
        ("python a.py --vec subproc", "python a.py", "in-process"),
        ("python a.py --subproc", "python a.py --no-subproc", "in-process"),
        ("a --collector workers", "a --collector serial", "in-process"),
        ("a --collector=workers", "a --collector=serial", "in-process"),
        ("a --collector serial", "a --collector workers --num-workers 2", "workers"),
        ("a --collector serial", "a --collector async", "overlap"),
        ("python a.py", "python b.py", None),
    ],
)
def test_the_words_that_differ_name_the_remedy(before: str, after: str, remedy: str | None) -> None:
    assert remedy_between(before.split(), after.split()) == remedy


def test_a_check_says_inside_outside_or_unknown() -> None:
    """Predicted 694 of 1,000; pairs of 0.7 are inside, of 0.5 and of 1 outside."""
    envs = found(iteration(USUAL))["envs"]
    for ratio, verdict in ((0.7, "inside"), (0.5, "outside"), (1.0, "outside")):
        checked = Checked("envs", envs, [10.0] * 2, [10 * ratio] * 2, ratio, ratio, ratio)
        assert checked.verdict == verdict
        assert f": {verdict}\n" in render_check(checked)
    small = dataclasses.replace(envs, known=False)
    hidden = Checked("envs", small, [10.0] * 2, [10.0] * 2, 1.0, 0.9, 1.1)
    assert hidden.verdict == "unknown"
    assert "predicted unknown" in render_check(hidden)
    unasked = Checked("fused", None, [1.0] * 2, [1.0] * 2, 1.0, 1.0, 1.0, "no rates")
    assert "predicted unknown (no rates)" in render_check(unasked)
    other = Checked("logging", None, [1.0] * 2, [1.0] * 2, 1.0, 1.0, 1.0, "no rates")
    assert "remedy logging does not apply" in render_check(other)
    assert Checked(None, None, [1.0] * 2, [1.0] * 2, 1.0, 1.0, 1.0).verdict == "unknown"


def test_redline_has_the_options_that_are_advised() -> None:
    """Read from the source: some remedies need a GPU, or a program of another kind."""
    pytest.importorskip("torch", reason="the light environment has the profiler alone")
    from redline.algos.registry import declaration
    from redline.train.presets import preset_config

    source = Path(remedies.__file__).read_text(encoding="utf-8")
    said = " ".join(re.findall(r'"Redline": f?"(--[^"]*)"', source))
    config = preset_config(declaration("sac"), "Pendulum-v1", "auto")
    names = {each.name for part in (config.run, config.algo) for each in dataclasses.fields(part)}
    options = {word.replace("-", "_") for word in re.findall(r"--(\S+)", said)}
    assert len(options) >= 5
    assert options <= names
    for name, value in re.findall(r"--(\S+) ([a-z]\S*)", said):
        config.replace(**{name.replace("-", "_"): value})  # refuses what it does not know


@pytest.mark.parametrize("cpus", ["x", -2, 1.5, [4]])
def test_a_number_of_cores_that_is_none_is_refused(cpus: Any) -> None:
    session = Session(Path("there"), {"mode": "full", "cpus": cpus}, [])
    with pytest.raises(SessionError, match=r"session\.json says cpus="):
        _cpus_of(session)
    assert _cpus_of(Session(Path("there"), {"mode": "full"}, [])) == 1
