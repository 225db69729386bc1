"""Remedies: what each would make of an iteration, computed from its parts.

A remedy changes the time of some parts and leaves the others. What it leaves open (how much of the
Python between two calls is paid per call, how well a compiler does) is a range, and the prediction
an interval over the ranges and over the session's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from redline.profile.advise.iteration import Iteration
from redline.profile.advise.rates import LARGER, Range, Rates
from redline.profile.advise.stretches import UPDATE

SMALL_SHARE = 0.02  # of an env step: what is less is within the noise of most machines
# What is saved, relative to what a remedy's model says: it leaves out caches, the allocator, what
# one part does to the next. About the mean error of the predictions in `benchmarks/predictions`.
MODEL_ERROR = 0.15
# What is their steps, of the optimizers' time: backpropagation without the backward passes. By the
# sampled stacks of SB3's PPO and CleanRL's PPO and SAC 94.7 to 96%; the rest is Python around the
# backward pass. Clipping is no part of it: it is learning, between the two.
STEP_SHARE = 0.95
ENVS = 8
# Envs of a worker in this process instead, at the least of the worker's time, and what the learner
# gains at most where workers took its core: measured with SB3's PPO on Acrobot, 4 workers, 2 cores.
WARM, CROWDED = 0.6, 0.2

__all__ = ["NEED_RATES", "REMEDIES", "Advice", "Change", "advise"]


@dataclass(frozen=True, slots=True)
class Change:
    """What a remedy does to an env step."""

    saved_us: Range  # per env step; negative: it costs
    assumes: str
    how: dict[str, str] = field(default_factory=dict)  # by framework, "" for any


@dataclass(frozen=True, slots=True)
class Advice:
    """A remedy with its prediction."""

    remedy: str
    title: str
    before_us: float
    predicted_us: float  # per env step
    low_us: float  # 95% interval
    high_us: float
    most_us: float  # saved per env step, by the remedy's own range
    known: bool  # False: noise would hide it, or it may gain nothing
    assumes: str
    how: str

    @property
    def gain(self) -> float:
        """The share of the time that goes, of 1."""
        return 1.0 - self.predicted_us / self.before_us


def advise(iteration: Iteration, rates: Rates | None) -> list[Advice]:
    """All remedies that apply, the largest gain first."""
    found: list[Advice] = []
    for name, (title, remedy) in REMEDIES.items():
        change = remedy(iteration, rates)
        if change is not None:
            spread = _spread(remedy, change, iteration, rates)
            found.append(_advice(name, title, change, iteration, spread))
    return sorted(found, key=lambda each: (not each.known, each.predicted_us))


def _share_left(change: Change, it: Iteration) -> float:
    """Of an env step."""
    return max(it.total.us - change.saved_us.middle, 0.0) / it.total.us


def _spread(remedy: Remedy, change: Change, it: Iteration, rates: Rates | None) -> float:
    """How far the share left changes with what the probe may have cost."""
    others = ((remedy(each, rates), each) for each in it.extremes if each.total.us > 0)
    left = [_share_left(other, each) for other, each in others if other is not None]
    return max((abs(each - _share_left(change, it)) for each in left), default=0.0)


def _advice(name: str, title: str, change: Change, it: Iteration, spread: float) -> Advice:
    before, saved = it.total.us, change.saved_us
    predicted = before * _share_left(change, it)
    # The whole stretches with the measured interval; the remedy's own range, the probe's and the
    # model's are beside it.
    half = math.hypot(
        it.total.half_us * predicted / before,
        (saved.high - saved.low) / 2,
        spread * before,
        MODEL_ERROR * abs(saved.middle),
    )
    noise = max(SMALL_SHARE * before, it.total.half_us)
    return Advice(
        remedy=name,
        title=title,
        before_us=before,
        predicted_us=predicted,
        low_us=max(predicted - half, 0.0),
        high_us=predicted + half,
        most_us=max(saved.high, 0.0),
        known=saved.middle > noise and saved.low > 0.0,
        assumes=change.assumes,
        how=change.how.get(it.framework, change.how.get("", "")),
    )


def _scaled(us: float, ratio: Range) -> Range:
    """What is saved of a time that becomes so many times as long."""
    return Range(us * (1.0 - ratio.high), us * (1.0 - ratio.low))


def _sum(*ranges: Range) -> Range:
    return Range(sum(r.low for r in ranges), sum(r.high for r in ranges))


def _more_envs(it: Iteration, rates: Rates | None) -> Change | None:
    inference = it.us("inference")
    if it.num_envs >= ENVS or inference <= 0:
        return None
    growth = rates.batched_inference if rates is not None else Range(1.0, 2.0)
    share = it.num_envs / ENVS
    # What a batch of 8 costs more than one of 1 is paid in proportion to the envs that are added.
    part = (1 - share) * ENVS / (LARGER - 1) / ENVS
    batched = Range(
        share * (1 + (growth.low - 1) * part * LARGER),
        share * (1 + (growth.high - 1) * part * LARGER),
    )
    # What surrounds the calls is mostly paid once for all envs, and so is adding to a buffer. Of
    # the Python of a step anything from nothing to all is the vector env's own, paid once.
    saved = _sum(
        _scaled(inference, batched),
        _scaled(it.us("other", "collection"), Range(share, (1 + share) / 2)),
        _scaled(it.us("replay"), Range(share, 1.0)),
        _scaled(it.part("simulation").level("python"), Range(share, 1.0)),
    )
    return Change(
        saved,
        f"{ENVS} envs in this process instead of {it.num_envs}; as many updates per env step as "
        "now; a call of the policy costs little more for a batch",
        {
            "SB3": f"make_vec_env(id, n_envs={ENVS}); off-policy algorithms: gradient_steps=-1 "
            "keeps the updates per env step; PPO, A2C: divide n_steps accordingly",
            "CleanRL": f"--num-envs {ENVS}, and --num-steps divided accordingly",
            "TorchRL": f"SerialEnv({ENVS}, make_env), with frames_per_batch as it is",
            "Redline": f"--num-envs {ENVS}",
            "": f"step {ENVS} envs at once (gymnasium.vector.SyncVectorEnv) and call the policy "
            "on the batch",
        },
    )


def _workers(it: Iteration, rates: Rates | None) -> Change | None:
    simulation = it.us("simulation")
    if it.workers or it.cpus < 2 or it.num_envs < 2 or rates is None:
        return None
    workers = min(it.num_envs, it.cpus)
    each = simulation / it.num_envs
    after = Range(
        simulation / workers + rates.ipc_us.low / 2,  # half of a message's way at the least
        simulation / max(workers - 1, 1) + each + rates.ipc_us.high,
    )
    return Change(
        Range(simulation - after.high, simulation - after.low),
        f"{workers} worker processes with a core each; a message and its answer take "
        f"{rates.ipc_us.low:.0f} to {rates.ipc_us.high:.0f} us (measured here)",
        {
            "SB3": "make_vec_env(..., vec_env_cls=SubprocVecEnv)",
            "CleanRL": "gym.vector.AsyncVectorEnv instead of SyncVectorEnv",
            "TorchRL": "ParallelEnv instead of SerialEnv",
            "Redline": f"--collector workers --num-workers {workers}",
            "": "gymnasium.vector.AsyncVectorEnv",
        },
    )


def _in_process(it: Iteration, rates: Rates | None) -> Change | None:
    busy, simulation = it.worker_busy_us, it.part("simulation")
    if not it.workers or not busy > 0:
        return None
    # One after another, and around them the vector env's Python: what it is for workers at most. A
    # worker that was woken begins with cold caches, which costs it up to two fifths of its time.
    after = Range(WARM * busy, 1.2 * busy + simulation.level("python"))
    # So do workers to this process, where they leave it no core of its own.
    crowded = it.workers >= it.cpus
    # What acts in the workers is waited for while collecting, not in a step of the simulator.
    waited = simulation.time.us + it.part("collection").level("waiting")
    rest = (it.total.us - waited) * (CROWDED if crowded else 0.0)
    return Change(
        _sum(
            Range(waited - after.high, waited - after.low),
            Range(0.0, rest),
        ),
        f"an env step takes {busy:.0f} us of a worker (measured here), and no message is sent",
        {
            "SB3": "make_vec_env(...) without SubprocVecEnv",
            "CleanRL": "gym.vector.SyncVectorEnv instead of AsyncVectorEnv",
            "TorchRL": "SerialEnv instead of ParallelEnv",
            "Redline": "--collector serial",
            "": "gymnasium.vector.SyncVectorEnv",
        },
    )


COLLECT_AHEAD = ("async", "ray")  # collectors of Redline that do it already


def _overlap(it: Iteration, rates: Rates | None) -> Change | None:
    learning = it.us("backpropagation", "learning", "replay", "forward", "zero_grad")
    collecting = it.us("simulation", "inference", "collection")
    if it.cpus < 2 or min(learning, collecting) <= 0 or it.collector in COLLECT_AHEAD:
        return None
    hidden = min(learning, collecting)
    return Change(
        Range(0.4 * hidden, 0.95 * hidden),
        "a core for each of the two; the policy that collects is one update old; the interpreter's "
        "lock and memory cost up to 60% of what is hidden",
        {
            "": "collect in another process or thread while the learner updates",
            "Redline": "--collector async",
        },
    )


def _is_plain_adam(it: Iteration, *done: str) -> bool:
    """Whether all optimizers are Adam, as far as is told, and none is done so already."""
    words = [word.split() for word in it.optimizers]
    return all(name in ("Adam", "AdamW") and not set(how) & set(done) for name, *how in words)


def _fused(it: Iteration, rates: Rates | None) -> Change | None:
    if rates is None or not it.optimizer_us > 0 or it.gpu.busy > 0:
        return None
    if not _is_plain_adam(it, "fused"):
        return None
    return Change(
        _scaled(it.optimizer_us, _of_steps(rates.fused_step)),
        f"{_told(it)}; fused takes "
        f"{rates.fused_step.low:.2f} to {rates.fused_step.high:.2f} of the time (measured here)",
        {
            "SB3": 'policy_kwargs={"optimizer_kwargs": {"fused": True}}',
            "": "torch.optim.Adam(..., fused=True)",
        },
    )


def _of_steps(ratio: Range) -> Range:
    """What becomes of the optimizers' time, if their steps take so many times as long."""
    return Range(1 - STEP_SHARE * (1 - ratio.low), 1 - STEP_SHARE * (1 - ratio.high))


def _told(it: Iteration) -> str:
    if it.optimizers:
        return "the optimizer is plain " + " and ".join(
            sorted({w.split()[0] for w in it.optimizers})
        )
    return "the optimizer is Adam or AdamW and loops over its tensors (the default on a CPU)"


def _foreach(it: Iteration, rates: Rates | None) -> Change | None:
    if rates is None or not it.optimizer_us > 0 or it.gpu.busy > 0:
        return None
    if not _is_plain_adam(it, "fused", "foreach"):
        return None
    return Change(
        _scaled(it.optimizer_us, _of_steps(rates.foreach_step)),
        f"{_told(it)}; foreach takes "
        f"{rates.foreach_step.low:.2f} to {rates.foreach_step.high:.2f} of it (measured here)",
        {
            "SB3": 'policy_kwargs={"optimizer_kwargs": {"foreach": True}}',
            "": "torch.optim.Adam(..., foreach=True)",
        },
    )


def _threads(it: Iteration, rates: Rates | None) -> Change | None:
    if rates is None or rates.threads < 2 or it.torch_threads == 1:
        return None
    if it.gpu.busy > 0:  # what one thread takes was measured with networks on the CPU
        return None
    learning = it.us("backpropagation", "forward", "learning")
    ratio = Range(rates.one_thread.low, max(rates.one_thread.high, rates.one_thread.low + 0.05))
    return Change(
        _scaled(learning, ratio),
        f"torch uses {rates.threads} threads now; small networks gain nothing from them, and "
        f"one takes {ratio.low:.2f} to {ratio.high:.2f} of the time (measured here)",
        {"": "torch.set_num_threads(1), or OMP_NUM_THREADS=1 in the environment"},
    )


def _compile(it: Iteration, rates: Rates | None) -> Change | None:
    update = it.us("backpropagation", "forward", "learning") + it.part("other").level("backend")
    if update <= 0 or "compile" in it.parts:
        return None
    return Change(
        Range(0.0, 0.5 * update),
        "the update has fixed shapes; small updates are half overhead at best; the first updates "
        "take minutes longer",
        {
            "Redline": "--accelerate compile",
            "": "torch.compile on the function that computes the loss",
        },
    )


def _graphs(it: Iteration, rates: Rates | None) -> Change | None:
    update = it.us(*UPDATE)
    launching, idle = it.gpu.launching * update, it.gpu.idle * update
    if launching <= 0 or it.gpu.busy <= 0 or it.gpu.replays:
        return None
    return Change(
        Range(0.3 * min(launching, idle), idle),
        "the GPU idles between kernels while the update is launched, and the update has fixed "
        "shapes",
        {
            "Redline": "--accelerate cudagraph",
            "": 'torch.compile(mode="reduce-overhead"), or torch.cuda.graph',
        },
    )


def _batches(it: Iteration, rates: Rates | None) -> Change | None:
    # An optimizer's step is as long for any batch: half as many take half as long.
    step = it.optimizer_us if it.optimizer_us > 0 else 0.0
    update = it.us("backpropagation", "forward", "learning") - step
    if rates is None or update <= 0:
        return None
    # So does Python between calls. Native calls are between that and what layers were measured to
    # take: most are of some numbers only, or smaller than the layers measured.
    python = sum(it.part(name).level("python") for name in ("forward", "learning"))
    native = Range(0.5, max(rates.doubled_batch.high / 2, 0.5))
    halved = min(python, update) + step + it.us("zero_grad")
    return Change(
        _sum(_scaled(update - min(python, update), native), _scaled(halved, Range(0.5, 0.5))),
        "batches twice as large, half as many updates: as many samples are learned from, in fewer "
        "steps, which may learn differently",
        {
            "SB3": "batch_size doubled; off-policy algorithms: train_freq doubled, gradient_steps "
            "as it is",
            "CleanRL": "PPO: --num-minibatches halved; SAC, DQN: --batch-size and train frequency "
            "doubled",
            "": "double the batch, halve the updates",
        },
    )


def _logging(it: Iteration, rates: Rates | None) -> Change | None:
    logging = it.us("logging")
    if logging <= 0:
        return None
    return Change(
        Range(0.8 * logging, 0.95 * logging),
        "a tenth of the log lines",
        {
            "SB3": "log_interval ten times as large",
            "CleanRL": "log every 1,000 instead of every 100 steps",
            "": "log a tenth as often",
        },
    )


def _replay_on_device(it: Iteration, rates: Rates | None) -> Change | None:
    replay = it.us("replay")
    if replay <= 0 or it.gpu.busy <= 0 or it.replay_is_near:
        return None
    return Change(
        Range(0.3 * replay, 0.9 * replay),
        "the replay buffer fits into the GPU's memory",
        {"Redline": "--replay-storage device", "": "keep the replay buffer on the device"},
    )


def _simulator(it: Iteration, rates: Rates | None) -> Change | None:
    simulator = it.part("simulation").level("simulator")
    if simulator <= 0:
        return None
    return Change(
        Range(0.0, 0.5 * simulator),
        "the simulator's own code can be made up to twice as fast: another env, as large a frame "
        "skip, no rendering, no image observations",
        {"": "a native vector env (EnvPool), a larger frame_skip, smaller images"},
    )


def _pinning(it: Iteration, rates: Rates | None) -> Change | None:
    if it.ready_us <= 0.05 * it.total.us:
        return None
    return Change(
        Range(0.0, 0.0),
        f"{it.ready_us:.0f} us per env step, on top of the time above, it was ready to run and had "
        "no core: others used the machine, or the program has more threads than cores",
        {"": "fewer workers or threads than cores; taskset -c for each process"},
    )


Remedy = Callable[[Iteration, Rates | None], Change | None]
NEED_RATES = frozenset({"workers", "fused", "foreach", "threads", "batches"})
"""Remedies whose gain is computed from what this machine is asked."""
REMEDIES: dict[str, tuple[str, Remedy]] = {
    "envs": (f"{ENVS} envs per process: inference in batches", _more_envs),
    "workers": ("env workers: simulate in several processes", _workers),
    "in-process": ("all envs in this process, without workers", _in_process),
    "overlap": ("collect while learning", _overlap),
    "fused": ("a fused optimizer", _fused),
    "foreach": ("a foreach optimizer", _foreach),
    "threads": ("one thread for torch", _threads),
    "compile": ("torch.compile", _compile),
    "graphs": ("CUDA graphs", _graphs),
    "batches": ("batches twice as large, half the updates", _batches),
    "logging": ("log a tenth as often", _logging),
    "replay": ("the replay buffer on the device", _replay_on_device),
    "simulator": ("a cheaper simulator", _simulator),
    "pinning": ("no more processes than cores, each pinned", _pinning),
}
