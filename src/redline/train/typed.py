"""What type checkers know of `redline.train`. Nothing imports it at run time.

Written by `python -m redline.train.write_types`; do not edit it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

if TYPE_CHECKING:
    from redline.algos.algorithm import Algorithm
    from redline.collect import Collector
    from redline.envs.backends.backend import Backend
    from redline.models.registry import NetworkFactory
    from redline.train.runs.given import EnvArgument
    from redline.train.runs.run import Run
    from redline.train.settings import RunConfig


class RunOptions(TypedDict, total=False):
    """Settings of every run."""

    total_env_steps: int
    """Length of the run in env_steps: decisions, summed over environments. Whole iterations are
    run until it is reached."""
    seed: int
    """Seed of everything: network, action noise, environments, minibatches."""
    device: str
    """Where the policy learns, and acts unless policy_device says otherwise: auto, cpu, cuda,
    cuda:N or mps. auto: the first CUDA device if there is one, else the CPU; the run says
    why."""
    policy_device: str | None
    """Where the policy acts; elsewhere than device it is a copy that takes over the weights
    after each iteration. None: device; the CPU where workers act."""
    env_device: str | None
    """Where native games are stepped, and where other environments' observations are delivered.
    None: policy_device for native games, the CPU for others."""
    eval_device: str | None
    """Where the policy acts while it is evaluated, as a copy if that is elsewhere than device.
    None: device, or the CPU with eval_async."""
    deterministic: bool
    """Whether only operators that give the same bits every time may run: on a GPU, some have no
    such form, and the run stops with the operator's name."""
    env_kwargs: str | Mapping[str, Any]
    """Further arguments of the environment, as a JSON object."""
    check_env: Literal["off", "first", "always"]
    """Whether observations of single environments are compared with their space, masks looked at
    for an allowed action, and spaces for changes. first: in each environment's first episode,
    and in one step of 1,009 after it."""
    atari_preset: Literal["dqn-2015", "machado-2018"]
    """Evaluation protocol of ALE environments; other environments have none."""
    clip_reward: bool | None
    """Whether the learner sees the sign of each reward. Returns are always the game's own. None:
    as atari_preset says; no elsewhere."""
    episodic_life: bool | None
    """Whether a lost life ends the learner's episode, in ALE's games. None: as atari_preset
    says."""
    sticky_actions: float | None
    """Probability of repeating the last executed action, in ALE's games. None: as atari_preset
    says."""
    noop_max: int | None
    """No-ops at the start of ALE's games are drawn from 1 to this; 0: none. None: as
    atari_preset says."""
    frame_skip: int | None
    """Frames that an action is held for in ALE's games. None: as atari_preset says, 4."""
    observe_previous: bool
    """Whether a policy with a core also sees its action before and that one's reward, zeros at
    the start of an episode."""
    reset_mode: Literal["auto", "immediate", "wait"]
    """After an episode ends: begin the next at once, or wait for the next iteration. auto: wait
    for reinforce, immediate for the others."""
    num_workers: int
    """W, worker processes (actors) of every collector but serial, and of the processes back end."""
    num_groups: int
    """Groups of environments of the alternating collector."""
    overlap_groups: bool
    """Whether one of these groups may begin to step while another one still does."""
    max_staleness: int
    """Updates of the weights that a rollout of the async and ray collectors may be behind."""
    cpu_affinity: str
    """Cores that workers are pinned to: none, auto (their share of all), or a list as 0-3,6."""
    worker_timeout_s: float
    """Seconds without an answer after which a worker counts as hung."""
    on_worker_failure: Literal["end", "restart"]
    """When a worker process dies, raises or hangs: end the run, or restart all workers, which
    begin fresh episodes. A run that restarted is not repeated to the bit."""
    max_worker_restarts: int
    """Restarts in a row, without a rollout between them, after which the run ends all the same."""
    accelerate: Literal["auto", "eager", "cpu", "compile", "cudagraph", "compile+cudagraph"]
    """How updates run: as they are written (eager), by hand-written kernels for known algorithms
    and networks (cpu), through torch.compile, or as captured CUDA graphs. What an engine
    cannot serve runs eager. auto: captured on CUDA; elsewhere what has proved fastest for
    such a device and such networks. config.json says which that was."""
    cpu_acting: bool | None
    """Whether hand-written kernels may act where they know the policy: for a single environment,
    and for images. None: where accelerate is auto or cpu."""
    self_check: bool
    """Whether some of an engine's updates are compared with the written one."""
    num_threads: int | Literal["auto"]
    """Threads of torch. auto: chosen from the work of an update and the cores that are free when
    the run starts; the run says how many, and config.json keeps the number."""
    tune_process: bool
    """Whether the run may change what holds for its whole process: glibc keeps freed memory,
    idle OpenMP threads sleep soon, numpy's matrix library works with one thread. Of several
    runs in one process the first decides."""
    out: str | Path | None
    """Run directory. None: runs/<name>, or runs/<group>/<name>; numbered if that is taken, also
    by a run that starts at the same moment."""
    name: str | None
    """What the run is called in tables and logs, and its default directory. None:
    <algorithm>-<env>-seed<seed>; before the seed up to three hyperparameters that differ from
    the preset's."""
    group: str | None
    """Runs that belong together: a folder under runs, and W&B's group."""
    tags: Sequence[str] | str
    """Words to find the run by, separated by commas."""
    init_from: str | Path | None
    """Run directory to begin with: its newest weights are taken where names and shapes fit."""
    init_parts: Sequence[str] | str
    """What is taken from there: weights, normalizer (statistics of observations), replay."""
    log_interval: int | None
    """env_steps between rows of progress.csv. None: 1% of total_env_steps."""
    checkpoints: Literal["none", "last", "every", "gap", "last+gap", "best"]
    """Which checkpoints are kept: the newest two, every one, those checkpoint_gap apart, ... The
    state at the end is always saved."""
    checkpoint_interval: int | None
    """env_steps between checkpoints. None: 5% of total_env_steps, or in the gap modes less, so
    that checkpoint_gap is a multiple of it."""
    checkpoint_gap: int | None
    """env_steps between the checkpoints that gap keeps. None: 20% of total_env_steps."""
    eval_interval: int
    """env_steps between evaluations on separate environments, at most total_env_steps; 0: none
    during training."""
    eval_async: bool
    """Whether to evaluate in a process of its own, while learning goes on. Results come a while
    later, and are waited for before a checkpoint and the next evaluation."""
    eval_episodes: int
    """Episodes of each evaluation."""
    eval_max_episode_steps: int | None
    """env_steps after which an episode of an evaluation is cut; it counts with the return it has
    then. None: each goes on until the environment ends it."""
    log_info: Sequence[str] | str
    """Names of values in the last info of each episode whose means are logged, separated by
    commas. Success rates are logged by themselves."""
    stop_at_return: float | None
    """Stop as soon as the mean return of the last 100 training episodes reaches this; the mean
    must cover at least 20."""
    on_divergence: Literal["stop", "warn"]
    """When a metric or a parameter is no longer a finite number: stop, before a broken state
    replaces a good checkpoint, or warn once and go on."""
    tensorboard: bool
    """Whether to write TensorBoard events."""
    jsonl: bool
    """Whether to write progress.jsonl, one JSON object per row."""
    wandb: bool
    """Whether to log to Weights & Biases (extra: wandb)."""
    quiet: bool
    """Whether to leave out the progress bar and messages."""
    hidden_sizes: Sequence[int]
    """Widths of the hidden layers for vector observations."""
    activation: Literal["tanh", "relu", "elu", "silu"]
    """Activation between those layers."""
    encoder: Literal["auto", "mlp", "nature", "impala", "minatar"]
    """Network in front of the heads. auto: nature for images, minatar for images too small for
    it, mlp for vectors."""
    core: Literal["none", "lstm", "gru", "transformer"]
    """What carries the past of an episode, between encoder and heads."""
    core_size: int
    """Width of the core."""
    core_window: int
    """Steps that each layer of a transformer attends to, the present one included."""
    core_layers: int
    """Layers of a transformer."""
    core_heads: int
    """Heads of attention in each layer; they divide core_size."""
    shared_encoder: bool | None
    """Whether actor and critic share the encoder. None: yes for images and with a core, no for
    vectors."""
    normalize_obs: bool
    """Whether float observations are normalized by running statistics, clipped to +-10."""
    distribution: Literal["auto", "gaussian", "squashed"]
    """Of Box actions: Gaussian clipped to the bounds (auto), or squashed into them by tanh."""
    initial_log_std: float
    """Logarithm of the Gaussian's initial standard deviation."""


class PPOOptions(RunOptions, total=False):
    """Settings of a run of ppo."""

    num_envs: int
    """B, environments stepped in parallel."""
    rollout_length: int
    """T, env_steps per environment per iteration."""
    num_epochs: int
    """Passes over each rollout."""
    num_minibatches: int | None
    """Equal parts of a rollout (of its environments, for a recurrent policy). None: as many as
    leave at least 64 samples to each; for a recurrent policy at most 4."""
    gamma: float
    """Discount per env_step, in [0, 1]."""
    gae_lambda: float
    """Lambda of generalized advantage estimation, in [0, 1]."""
    clip_range: float
    """Epsilon: the ratio is clipped to [1 - epsilon, 1 + epsilon]."""
    clip_range_schedule: Literal["constant", "linear"]
    """How clip_range changes with env_steps; linear reaches 0 at total_env_steps."""
    clip_range_value: float | None
    """Largest change of the value prediction that the value loss rewards; None: unclipped."""
    normalize_advantage: bool
    """Whether advantages get mean 0 and standard deviation 1 in each minibatch."""
    value_coef: float
    """Weight of the value loss."""
    entropy_coef: float
    """Weight of the entropy bonus."""
    entropy_coef_schedule: Literal["constant", "linear"]
    """How entropy_coef changes with env_steps; linear reaches 0 at total_env_steps."""
    learning_rate: float
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"]
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    adam_eps: float
    """Adam's epsilon."""
    max_grad_norm: float
    """Gradients are scaled down to this L2 norm; 0 switches clipping off."""
    target_kl: float | None
    """Skip the rest of an iteration's steps once the KL estimate passes this, in nats. None:
    never."""
    scale_reward: bool
    """Whether rewards are divided by the running standard deviation of the discounted return,
    and then clipped to [-10, 10]. Logged returns are the true ones."""
    noise_color: float
    """How alike the action noise of neighboring steps is while collecting: the exponent of its
    spectrum. 0: white, steps are independent; 0.5: what suits PPO (Hollenstein et al. 2024);
    1: pink; 2: red."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the value's hidden layers, where it shares none with the policy. None:
    hidden_sizes."""


class A2COptions(RunOptions, total=False):
    """Settings of a run of a2c."""

    num_envs: int
    """B, environments stepped in parallel."""
    rollout_length: int
    """T, env_steps per environment per iteration; one optimizer step each."""
    gamma: float
    """Discount per env_step, in [0, 1]."""
    gae_lambda: float
    """Lambda of generalized advantage estimation, in [0, 1]; 1 is A2C's n-step return."""
    normalize_advantage: bool
    """Whether advantages get mean 0 and standard deviation 1 in each rollout."""
    value_coef: float
    """Weight of the value loss."""
    entropy_coef: float
    """Weight of the entropy bonus."""
    entropy_coef_schedule: Literal["constant", "linear"]
    """How entropy_coef changes with env_steps; linear reaches 0 at total_env_steps."""
    optimizer: Literal["rmsprop", "adam"]
    """Which optimizer; RMSprop (smoothing 0.99) is the original's."""
    learning_rate: float
    """The optimizer's step size."""
    learning_rate_schedule: Literal["constant", "linear"]
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    optimizer_eps: float
    """The optimizer's epsilon."""
    max_grad_norm: float
    """Gradients are scaled down to this L2 norm; 0 switches clipping off."""
    scale_reward: bool
    """Whether rewards are divided by the running standard deviation of the discounted return,
    and then clipped to [-10, 10]. Logged returns are the true ones."""
    noise_color: float
    """How alike the action noise of neighboring steps is while collecting: the exponent of its
    spectrum. 0: white, steps are independent; 0.5: what suits PPO (Hollenstein et al. 2024);
    1: pink; 2: red."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the value's hidden layers, where it shares none with the policy. None:
    hidden_sizes."""


class REINFORCEOptions(RunOptions, total=False):
    """Settings of a run of reinforce."""

    num_envs: int
    """B, environments stepped in parallel: at most that many episodes per iteration."""
    rollout_length: int
    """T, env_steps per environment per iteration at most. A longer episode goes on in the next
    iteration, its tail estimated by the baseline."""
    gamma: float
    """Discount per env_step, in [0, 1]."""
    normalize_advantage: bool
    """Whether advantages get mean 0 and standard deviation 1 in each iteration."""
    value_coef: float
    """Weight of the baseline's loss."""
    entropy_coef: float
    """Weight of the entropy bonus."""
    entropy_coef_schedule: Literal["constant", "linear"]
    """How entropy_coef changes with env_steps; linear reaches 0 at total_env_steps."""
    learning_rate: float
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"]
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    adam_eps: float
    """Adam's epsilon."""
    max_grad_norm: float
    """Gradients are scaled down to this L2 norm; 0 switches clipping off."""
    scale_reward: bool
    """Whether rewards are divided by the running standard deviation of the discounted return,
    and then clipped to [-10, 10]. Logged returns are the true ones."""
    noise_color: float
    """How alike the action noise of neighboring steps is while collecting: the exponent of its
    spectrum. 0: white, steps are independent; 0.5: what suits PPO (Hollenstein et al. 2024);
    1: pink; 2: red."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the baseline's hidden layers, where it shares none with the policy. None:
    hidden_sizes."""


class IMPALAOptions(RunOptions, total=False):
    """Settings of a run of impala."""

    num_envs: int
    """B, environments stepped in parallel."""
    rollout_length: int
    """T, env_steps per environment per iteration; one optimizer step each."""
    gamma: float
    """Discount per env_step, in [0, 1]."""
    gae_lambda: float
    """Lambda of generalized advantage estimation, in [0, 1]; 1 is A2C's n-step return."""
    normalize_advantage: bool
    """Whether advantages get mean 0 and standard deviation 1 in each rollout."""
    value_coef: float
    """Weight of the value loss."""
    entropy_coef: float
    """Weight of the entropy bonus."""
    entropy_coef_schedule: Literal["constant", "linear"]
    """How entropy_coef changes with env_steps; linear reaches 0 at total_env_steps."""
    optimizer: Literal["rmsprop", "adam"]
    """Which optimizer; RMSprop (smoothing 0.99) is the original's."""
    learning_rate: float
    """The optimizer's step size."""
    learning_rate_schedule: Literal["constant", "linear"]
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    optimizer_eps: float
    """The optimizer's epsilon."""
    max_grad_norm: float
    """Gradients are scaled down to this L2 norm; 0 switches clipping off."""
    scale_reward: bool
    """Whether rewards are divided by the running standard deviation of the discounted return,
    and then clipped to [-10, 10]. Logged returns are the true ones."""
    noise_color: float
    """How alike the action noise of neighboring steps is while collecting: the exponent of its
    spectrum. 0: white, steps are independent; 0.5: what suits PPO (Hollenstein et al. 2024);
    1: pink; 2: red."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the value's hidden layers, where it shares none with the policy. None:
    hidden_sizes."""
    rho_bar: float
    """Largest importance ratio in the temporal difference and the policy gradient."""
    c_bar: float
    """Largest importance ratio in how far back a difference reaches; at most rho_bar."""


class APPOOptions(RunOptions, total=False):
    """Settings of a run of appo."""

    num_envs: int
    """B, environments stepped in parallel."""
    rollout_length: int
    """T, env_steps per environment per iteration."""
    num_epochs: int
    """Passes over each rollout."""
    num_minibatches: int | None
    """Equal parts of a rollout (of its environments, for a recurrent policy). None: as many as
    leave at least 64 samples to each; for a recurrent policy at most 4."""
    gamma: float
    """Discount per env_step, in [0, 1]."""
    gae_lambda: float
    """Lambda of generalized advantage estimation, in [0, 1]."""
    clip_range: float
    """Epsilon: the ratio is clipped to [1 - epsilon, 1 + epsilon]."""
    clip_range_schedule: Literal["constant", "linear"]
    """How clip_range changes with env_steps; linear reaches 0 at total_env_steps."""
    clip_range_value: float | None
    """Largest change of the value prediction that the value loss rewards; None: unclipped."""
    normalize_advantage: bool
    """Whether advantages get mean 0 and standard deviation 1 in each minibatch."""
    value_coef: float
    """Weight of the value loss."""
    entropy_coef: float
    """Weight of the entropy bonus."""
    entropy_coef_schedule: Literal["constant", "linear"]
    """How entropy_coef changes with env_steps; linear reaches 0 at total_env_steps."""
    learning_rate: float
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"]
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    adam_eps: float
    """Adam's epsilon."""
    max_grad_norm: float
    """Gradients are scaled down to this L2 norm; 0 switches clipping off."""
    target_kl: float | None
    """Skip the rest of an iteration's steps once the KL estimate passes this, in nats. None:
    never."""
    scale_reward: bool
    """Whether rewards are divided by the running standard deviation of the discounted return,
    and then clipped to [-10, 10]. Logged returns are the true ones."""
    noise_color: float
    """How alike the action noise of neighboring steps is while collecting: the exponent of its
    spectrum. 0: white, steps are independent; 0.5: what suits PPO (Hollenstein et al. 2024);
    1: pink; 2: red."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the value's hidden layers, where it shares none with the policy. None:
    hidden_sizes."""
    rho_bar: float
    """Largest importance ratio in the temporal difference and the advantage."""
    c_bar: float
    """Largest importance ratio in how far back a difference reaches; at most rho_bar."""


class DQNOptions(RunOptions, total=False):
    """Settings of a run of dqn."""

    num_envs: int
    """B, environments stepped in parallel."""
    rollout_length: int
    """T, env_steps per environment per iteration; the iteration's updates follow."""
    batch_size: int
    """Transitions per update. A smaller batch makes more updates: replay_ratio / batch_size per
    env_step."""
    gamma: float
    """Discount per env_step, in [0, 1]."""
    n_step: int
    """Rewards summed before bootstrapping."""
    replay_size: int
    """Transitions kept, over all environments; the oldest make room."""
    replay_ratio: float
    """Samples consumed by updates per sample collected: updates per iteration = replay_ratio * T
    * B / batch_size. What is left over is carried on."""
    learning_starts: int
    """env_steps collected before the first update."""
    replay: Literal["plain", "her"]
    """plain: transitions are learned from as they were collected. her: hindsight experience
    replay, for goal environments; in a share of each batch the goal is replaced by one that
    the same episode reached later (Andrychowicz et al. 2017)."""
    her_share: float
    """That share, in [0, 1]: k / (k + 1) for k replaced goals beside each true one."""
    replay_storage: Literal["memory", "memmap", "device"]
    """Where transitions lie: main memory, a file in the run directory, or the device."""
    replay_frame_stack: int | None
    """Frames on the first axis of an observation, newest last, of which each is stored once.
    None: as the environment is known to stack them (ALE); 1: observations are stored whole."""
    prioritized: bool
    """Whether samples are drawn in proportion to their TD error (Schaul et al. 2016)."""
    priority_alpha: float
    """Exponent of the priorities; 0 is uniform."""
    priority_beta: float
    """Exponent of the importance weights at the start; it rises to 1 at total_env_steps."""
    double_q: bool
    """Whether the online network chooses the action that the target network values (van Hasselt
    et al. 2016)."""
    dueling: bool
    """Whether Q is a state value plus advantages less their mean over actions (Wang et al.
    2016)."""
    head_hidden_sizes: Sequence[int]
    """Hidden layers of each stream between the torso (or core) and the outputs."""
    huber_threshold: float | None
    """TD errors beyond it count linearly; kappa of the quantile losses. None: squared error."""
    learning_rate: float
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"]
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    adam_eps: float
    """Adam's epsilon."""
    max_grad_norm: float
    """Gradients are scaled down to this L2 norm; 0 switches clipping off."""
    target_update_interval: int
    """Optimizer steps between updates of the target network."""
    tau: float
    """Share of the online parameters in each update of the target; 1 copies them."""
    epsilon_schedule: Literal["linear", "ape-x"]
    """linear: one epsilon for all environments, falling with global env_steps. ape-x: a constant
    one for each environment, ape_x_epsilon^(1 + ape_x_alpha * i / (B - 1))."""
    epsilon_initial: float
    """Share of random actions at the start (linear)."""
    epsilon_final: float
    """Share of random actions from epsilon_fraction * total_env_steps on (linear)."""
    epsilon_fraction: float
    """Part of total_env_steps in which epsilon falls (linear); 0: epsilon_final at once."""
    ape_x_epsilon: float
    """Epsilon of the first environment, the most exploring one (ape-x)."""
    ape_x_alpha: float
    """How much less the last environment explores, as an exponent (ape-x)."""
    noisy: bool
    """Whether the layers after the torso have noisy weights (Fortunato et al. 2018). They
    explore by themselves once learning has started: use a small epsilon_final, such as 0."""
    noisy_std: float
    """Initial standard deviation of the noisy weights, times the square root of fan-in."""
    value_distribution: Literal["none", "categorical", "quantile", "implicit"]
    """What is learned of the return: its mean, C51's categorical distribution, QR-DQN's fixed
    quantiles, or IQN's implicit quantile function."""
    num_atoms: int
    """Atoms of the categorical distribution."""
    v_min: float
    """Value of its first atom: the least discounted return to tell apart."""
    v_max: float
    """Value of its last atom: the greatest."""
    num_quantiles: int
    """Quantiles of the quantile distribution."""
    num_fractions: int
    """Fractions drawn for the predictions of the implicit distribution (N of IQN)."""
    num_target_fractions: int
    """Fractions drawn for its targets (N')."""
    num_acting_fractions: int
    """Evenly spaced fractions whose mean is the value that acts and is maximized (K)."""


class R2D1Options(RunOptions, total=False):
    """Settings of a run of r2d1."""

    num_envs: int
    """B, environments stepped in parallel."""
    rollout_length: int
    """T, env_steps per environment per iteration; a divisor of state_interval."""
    batch_size: int
    """Sequences per update. A smaller batch makes more updates: per env_step there are
    replay_ratio / (batch_size * sequence_length)."""
    gamma: float
    """Discount per env_step, in [0, 1]."""
    n_step: int
    """Rewards summed before bootstrapping."""
    replay_size: int
    """Transitions kept, over all environments; the oldest make room."""
    replay_ratio: float
    """Learned rows consumed by updates per env_step collected: updates per iteration =
    replay_ratio * T * B / (batch_size * sequence_length). What is left over is carried on."""
    learning_starts: int
    """env_steps collected before the first update."""
    replay: Literal["plain", "her"]
    """plain: transitions are learned from as they were collected. her: hindsight experience
    replay, for goal environments; in a share of each batch the goal is replaced by one that
    the same episode reached later (Andrychowicz et al. 2017)."""
    her_share: float
    """That share, in [0, 1]: k / (k + 1) for k replaced goals beside each true one."""
    replay_storage: Literal["memory", "memmap", "device"]
    """Where transitions lie: main memory, a file in the run directory, or the device."""
    replay_frame_stack: int | None
    """Frames on the first axis of an observation, newest last, of which each is stored once.
    None: as the environment is known to stack them (ALE); 1: observations are stored whole."""
    prioritized: bool
    """Whether sequences are drawn by their priority."""
    priority_alpha: float
    """Exponent of the priorities; 0 is uniform."""
    priority_beta: float
    """Exponent of the importance weights at the start; it rises to 1 at total_env_steps."""
    double_q: bool
    """Whether the online network chooses the action that the target network values (van Hasselt
    et al. 2016)."""
    dueling: bool
    """Whether Q is a state value plus advantages less their mean over actions (Wang et al.
    2016)."""
    head_hidden_sizes: Sequence[int]
    """Hidden layers of each stream between the torso (or core) and the outputs."""
    huber_threshold: float | None
    """TD errors beyond it count linearly. None: squared error."""
    learning_rate: float
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"]
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    adam_eps: float
    """Adam's epsilon. R2D2's is 1e-3 for a loss that is summed over a sequence; of the mean it
    is 1e-3 / sequence_length."""
    max_grad_norm: float
    """Gradients are scaled down to this L2 norm; 0 switches clipping off. R2D2's is 40 for a
    loss that is summed over a sequence; of the mean it is 40 / sequence_length."""
    target_update_interval: int
    """Optimizer steps between updates of the target network."""
    tau: float
    """Share of the online parameters in each update of the target; 1 copies them."""
    epsilon_schedule: Literal["linear", "ape-x"]
    """linear: one epsilon for all environments, falling with global env_steps. ape-x: a constant
    one for each environment, ape_x_epsilon^(1 + ape_x_alpha * i / (B - 1))."""
    epsilon_initial: float
    """Share of random actions at the start (linear)."""
    epsilon_final: float
    """Share of random actions from epsilon_fraction * total_env_steps on (linear)."""
    epsilon_fraction: float
    """Part of total_env_steps in which epsilon falls (linear); 0: epsilon_final at once."""
    ape_x_epsilon: float
    """Epsilon of the first environment, the most exploring one (ape-x)."""
    ape_x_alpha: float
    """How much less the last environment explores, as an exponent (ape-x)."""
    priority_eta: float
    """Priority of a sequence = eta * greatest + (1 - eta) * mean TD error of its rows."""
    sequence_length: int
    """Rows of a sequence that are learned from."""
    burn_in: int
    """Rows before those, which only warm the recurrent state up."""
    state_interval: int
    """Rows from one sequence's start to the next one's, where the state is stored; a multiple of
    rollout_length."""
    value_rescaling: bool
    """Whether Q is learned of h(return), h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x, which
    takes the place of clipped rewards."""


class DDPGOptions(RunOptions, total=False):
    """Settings of a run of ddpg."""

    num_envs: int
    """B, environments stepped in parallel."""
    rollout_length: int
    """T, env_steps per environment per iteration; the iteration's updates follow."""
    batch_size: int
    """Transitions (or sequences) per update. A smaller batch makes more updates: per env_step
    there are replay_ratio / samples per update."""
    gamma: float
    """Discount per env_step, in [0, 1]."""
    n_step: int
    """Rewards summed before bootstrapping."""
    replay_size: int
    """Transitions kept, over all environments; the oldest make room."""
    replay_ratio: float
    """Samples consumed by updates per sample collected: updates per iteration = replay_ratio * T
    * B / samples per update. What is left over is carried on."""
    learning_starts: int
    """env_steps collected before the first update."""
    replay: Literal["plain", "her"]
    """plain: transitions are learned from as they were collected. her: hindsight experience
    replay, for goal environments; in a share of each batch the goal is replaced by one that
    the same episode reached later (Andrychowicz et al. 2017)."""
    her_share: float
    """That share, in [0, 1]: k / (k + 1) for k replaced goals beside each true one."""
    replay_storage: Literal["memory", "memmap", "device"]
    """Where transitions lie: main memory, a file in the run directory, or the device."""
    replay_frame_stack: int | None
    """Frames on the first axis of an observation, newest last, of which each is stored once.
    None: as the environment is known to stack them (ALE); 1: observations are stored whole."""
    prioritized: bool
    """Whether samples are drawn in proportion to their TD error (Schaul et al. 2016)."""
    priority_alpha: float
    """Exponent of the priorities; 0 is uniform."""
    priority_beta: float
    """Exponent of the importance weights at the start; it rises to 1 at total_env_steps."""
    exploration_noise: float
    """Standard deviation of the noise on actions while collecting, in units of half the distance
    between the bounds."""
    noise_color: float
    """How alike the action noise of neighboring steps is while collecting: the exponent of its
    spectrum. 0: white, steps are independent; 1: pink; 2: red (Eberhard et al. 2023)."""
    tau: float
    """Share of the way that the target networks move towards the online ones."""
    learning_rate: float
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"]
    """How learning_rate, and in proportion the two below, changes with env_steps; linear reaches
    0 at total_env_steps."""
    actor_learning_rate: float | None
    """Adam's step size for the actor. None: learning_rate."""
    critic_learning_rate: float | None
    """Adam's step size for the critic. None: learning_rate."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critic's hidden layers. None: hidden_sizes, which the actor has."""


class TD3Options(RunOptions, total=False):
    """Settings of a run of td3."""

    num_envs: int
    """B, environments stepped in parallel."""
    rollout_length: int
    """T, env_steps per environment per iteration; the iteration's updates follow."""
    batch_size: int
    """Transitions (or sequences) per update. A smaller batch makes more updates: per env_step
    there are replay_ratio / samples per update."""
    gamma: float
    """Discount per env_step, in [0, 1]."""
    n_step: int
    """Rewards summed before bootstrapping."""
    replay_size: int
    """Transitions kept, over all environments; the oldest make room."""
    replay_ratio: float
    """Samples consumed by updates per sample collected: updates per iteration = replay_ratio * T
    * B / samples per update. What is left over is carried on."""
    learning_starts: int
    """env_steps collected before the first update."""
    replay: Literal["plain", "her"]
    """plain: transitions are learned from as they were collected. her: hindsight experience
    replay, for goal environments; in a share of each batch the goal is replaced by one that
    the same episode reached later (Andrychowicz et al. 2017)."""
    her_share: float
    """That share, in [0, 1]: k / (k + 1) for k replaced goals beside each true one."""
    replay_storage: Literal["memory", "memmap", "device"]
    """Where transitions lie: main memory, a file in the run directory, or the device."""
    replay_frame_stack: int | None
    """Frames on the first axis of an observation, newest last, of which each is stored once.
    None: as the environment is known to stack them (ALE); 1: observations are stored whole."""
    prioritized: bool
    """Whether samples are drawn in proportion to their TD error (Schaul et al. 2016)."""
    priority_alpha: float
    """Exponent of the priorities; 0 is uniform."""
    priority_beta: float
    """Exponent of the importance weights at the start; it rises to 1 at total_env_steps."""
    exploration_noise: float
    """Standard deviation of the noise on actions while collecting."""
    noise_color: float
    """How alike the action noise of neighboring steps is while collecting: the exponent of its
    spectrum. 0: white, steps are independent; 1: pink; 2: red (Eberhard et al. 2023)."""
    target_noise: float
    """Standard deviation of the noise on the target policy's actions."""
    target_noise_clip: float
    """Bound of that noise, c."""
    policy_delay: int
    """Updates of the critics per update of the actor and of all targets, d."""
    num_critics: int
    """Critics in the ensemble, whose minimum makes the target; the actor follows the first."""
    tau: float
    """Share of the way that the target networks move towards the online ones."""
    learning_rate: float
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"]
    """How learning_rate, and in proportion the two below, changes with env_steps; linear reaches
    0 at total_env_steps."""
    actor_learning_rate: float | None
    """Adam's step size for the actor. None: learning_rate."""
    critic_learning_rate: float | None
    """Adam's step size for the critics. None: learning_rate."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critics' hidden layers. None: hidden_sizes, which the actor has."""


class SACOptions(RunOptions, total=False):
    """Settings of a run of sac."""

    num_envs: int
    """B, environments stepped in parallel."""
    rollout_length: int
    """T, env_steps per environment per iteration; the iteration's updates follow."""
    batch_size: int
    """Transitions (or sequences) per update. A smaller batch makes more updates: per env_step
    there are replay_ratio / samples per update."""
    gamma: float
    """Discount per env_step, in [0, 1]."""
    n_step: int
    """Rewards summed before bootstrapping."""
    replay_size: int
    """Transitions kept, over all environments; the oldest make room."""
    replay_ratio: float
    """Samples consumed by updates per sample collected: updates per iteration = replay_ratio * T
    * B / samples per update. What is left over is carried on."""
    learning_starts: int
    """env_steps collected before the first update."""
    replay: Literal["plain", "her"]
    """plain: transitions are learned from as they were collected. her: hindsight experience
    replay, for goal environments; in a share of each batch the goal is replaced by one that
    the same episode reached later (Andrychowicz et al. 2017)."""
    her_share: float
    """That share, in [0, 1]: k / (k + 1) for k replaced goals beside each true one."""
    replay_storage: Literal["memory", "memmap", "device"]
    """Where transitions lie: main memory, a file in the run directory, or the device."""
    replay_frame_stack: int | None
    """Frames on the first axis of an observation, newest last, of which each is stored once.
    None: as the environment is known to stack them (ALE); 1: observations are stored whole."""
    prioritized: bool
    """Whether samples are drawn in proportion to their TD error (Schaul et al. 2016)."""
    priority_alpha: float
    """Exponent of the priorities; 0 is uniform."""
    priority_beta: float
    """Exponent of the importance weights at the start; it rises to 1 at total_env_steps."""
    alpha: float | None
    """Temperature, the weight of the entropy. None: learned."""
    initial_alpha: float
    """Where the learned temperature starts."""
    target_entropy: float | None
    """Entropy in nats that the learned temperature steers to. None: -dim(A) for Box actions,
    target_entropy_scale * log |A| for Discrete ones, where A are the actions that the action
    mask of each observation allows."""
    target_entropy_scale: float
    """Share of the largest entropy, log |A|, that Discrete actions are steered to. At 0.5 the
    better one of two choices has a probability of 0.89, at the paper's 0.98 one of 0.58."""
    backup_entropy: bool | None
    """Whether the critics' target counts the entropy of the next actions, as the paper's does.
    None: for Box actions, not for Discrete ones, where it can outgrow the reward (Asad et al.
    2025, arXiv:2509.09838). The actor's loss counts the entropy either way."""
    noise_color: float
    """How alike the action noise of neighboring steps is while collecting: the exponent of its
    spectrum. 0: white, steps are independent; 1: pink; 2: red (Eberhard et al. 2023)."""
    tau: float
    """Share of the way that the target critics move towards the critics."""
    target_update_interval: int
    """Updates per step of the target critics."""
    actor_update_interval: int
    """Updates of the critics per update of the actor and the temperature."""
    num_critics: int
    """E, critics in the ensemble."""
    critic_subset: int | None
    """M, critics drawn anew at each update whose minimum makes the target. None: all of them."""
    actor_follows: Literal["min", "mean"] | None
    """What of all critics the actor maximizes: their minimum or their mean. None: the mean with
    critic_subset, else the minimum."""
    critic_layer_norm: bool
    """Whether the critics have layer normalization before each activation."""
    critic_dropout: float
    """Share of the critics' hidden outputs that is dropped."""
    learning_rate: float
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"]
    """How learning_rate, and in proportion the three below, changes with env_steps; linear
    reaches 0 at total_env_steps."""
    actor_learning_rate: float | None
    """Adam's step size for the actor. None: learning_rate."""
    critic_learning_rate: float | None
    """Adam's step size for the critics. None: learning_rate."""
    alpha_learning_rate: float | None
    """Adam's step size for the temperature. None: learning_rate."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critics' hidden layers. None: hidden_sizes, which the actor has."""


class TQCOptions(RunOptions, total=False):
    """Settings of a run of tqc."""

    num_envs: int
    """B, environments stepped in parallel."""
    rollout_length: int
    """T, env_steps per environment per iteration; the iteration's updates follow."""
    batch_size: int
    """Transitions (or sequences) per update. A smaller batch makes more updates: per env_step
    there are replay_ratio / samples per update."""
    gamma: float
    """Discount per env_step, in [0, 1]."""
    n_step: int
    """Rewards summed before bootstrapping."""
    replay_size: int
    """Transitions kept, over all environments; the oldest make room."""
    replay_ratio: float
    """Samples consumed by updates per sample collected: updates per iteration = replay_ratio * T
    * B / samples per update. What is left over is carried on."""
    learning_starts: int
    """env_steps collected before the first update."""
    replay: Literal["plain", "her"]
    """plain: transitions are learned from as they were collected. her: hindsight experience
    replay, for goal environments; in a share of each batch the goal is replaced by one that
    the same episode reached later (Andrychowicz et al. 2017)."""
    her_share: float
    """That share, in [0, 1]: k / (k + 1) for k replaced goals beside each true one."""
    replay_storage: Literal["memory", "memmap", "device"]
    """Where transitions lie: main memory, a file in the run directory, or the device."""
    replay_frame_stack: int | None
    """Frames on the first axis of an observation, newest last, of which each is stored once.
    None: as the environment is known to stack them (ALE); 1: observations are stored whole."""
    prioritized: bool
    """Whether samples are drawn in proportion to their TD error (Schaul et al. 2016)."""
    priority_alpha: float
    """Exponent of the priorities; 0 is uniform."""
    priority_beta: float
    """Exponent of the importance weights at the start; it rises to 1 at total_env_steps."""
    alpha: float | None
    """Temperature, the weight of the entropy. None: learned."""
    initial_alpha: float
    """Where the learned temperature starts."""
    target_entropy: float | None
    """Entropy in nats that the learned temperature steers to. None: -dim(A) for Box actions,
    target_entropy_scale * log |A| for Discrete ones, where A are the actions that the action
    mask of each observation allows."""
    target_entropy_scale: float
    """Share of the largest entropy, log |A|, that Discrete actions are steered to. At 0.5 the
    better one of two choices has a probability of 0.89, at the paper's 0.98 one of 0.58."""
    backup_entropy: bool | None
    """Whether the critics' target counts the entropy of the next actions, as the paper's does.
    None: for Box actions, not for Discrete ones, where it can outgrow the reward (Asad et al.
    2025, arXiv:2509.09838). The actor's loss counts the entropy either way."""
    noise_color: float
    """How alike the action noise of neighboring steps is while collecting: the exponent of its
    spectrum. 0: white, steps are independent; 1: pink; 2: red (Eberhard et al. 2023)."""
    tau: float
    """Share of the way that the target critics move towards the critics."""
    target_update_interval: int
    """Updates per step of the target critics."""
    actor_update_interval: int
    """Updates of the critics per update of the actor and the temperature."""
    num_critics: int
    """E, critics in the ensemble."""
    critic_subset: int | None
    """M, critics drawn anew at each update whose minimum makes the target. None: all of them."""
    actor_follows: Literal["min", "mean"] | None
    """What of all critics the actor maximizes: their minimum or their mean. None: the mean with
    critic_subset, else the minimum."""
    critic_layer_norm: bool
    """Whether the critics have layer normalization before each activation."""
    critic_dropout: float
    """Share of the critics' hidden outputs that is dropped."""
    learning_rate: float
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"]
    """How learning_rate, and in proportion the three below, changes with env_steps; linear
    reaches 0 at total_env_steps."""
    actor_learning_rate: float | None
    """Adam's step size for the actor. None: learning_rate."""
    critic_learning_rate: float | None
    """Adam's step size for the critics. None: learning_rate."""
    alpha_learning_rate: float | None
    """Adam's step size for the temperature. None: learning_rate."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critics' hidden layers. None: hidden_sizes, which the actor has."""
    num_quantiles: int
    """M, quantiles of each critic."""
    dropped_quantiles: int
    """d, of each critic's quantiles so many are left out of the target: the largest of all E *
    M, d * E of them. More of them hold values down further."""


class CROSSQOptions(RunOptions, total=False):
    """Settings of a run of crossq."""

    num_envs: int
    """B, environments stepped in parallel."""
    rollout_length: int
    """T, env_steps per environment per iteration; the iteration's updates follow."""
    batch_size: int
    """Transitions (or sequences) per update. A smaller batch makes more updates: per env_step
    there are replay_ratio / samples per update."""
    gamma: float
    """Discount per env_step, in [0, 1]."""
    n_step: int
    """Rewards summed before bootstrapping."""
    replay_size: int
    """Transitions kept, over all environments; the oldest make room."""
    replay_ratio: float
    """Samples consumed by updates per sample collected: updates per iteration = replay_ratio * T
    * B / samples per update. What is left over is carried on."""
    learning_starts: int
    """env_steps collected before the first update."""
    replay: Literal["plain", "her"]
    """plain: transitions are learned from as they were collected. her: hindsight experience
    replay, for goal environments; in a share of each batch the goal is replaced by one that
    the same episode reached later (Andrychowicz et al. 2017)."""
    her_share: float
    """That share, in [0, 1]: k / (k + 1) for k replaced goals beside each true one."""
    replay_storage: Literal["memory", "memmap", "device"]
    """Where transitions lie: main memory, a file in the run directory, or the device."""
    replay_frame_stack: int | None
    """Frames on the first axis of an observation, newest last, of which each is stored once.
    None: as the environment is known to stack them (ALE); 1: observations are stored whole."""
    prioritized: bool
    """Whether samples are drawn in proportion to their TD error (Schaul et al. 2016)."""
    priority_alpha: float
    """Exponent of the priorities; 0 is uniform."""
    priority_beta: float
    """Exponent of the importance weights at the start; it rises to 1 at total_env_steps."""
    alpha: float | None
    """Temperature, the weight of the entropy. None: learned."""
    initial_alpha: float
    """Where the learned temperature starts."""
    target_entropy: float | None
    """Entropy in nats that the learned temperature steers to. None: -dim(A) for Box actions,
    target_entropy_scale * log |A| for Discrete ones, where A are the actions that the action
    mask of each observation allows."""
    target_entropy_scale: float
    """Share of the largest entropy, log |A|, that Discrete actions are steered to. At 0.5 the
    better one of two choices has a probability of 0.89, at the paper's 0.98 one of 0.58."""
    backup_entropy: bool | None
    """Whether the critics' target counts the entropy of the next actions, as the paper's does.
    None: for Box actions, not for Discrete ones, where it can outgrow the reward (Asad et al.
    2025, arXiv:2509.09838). The actor's loss counts the entropy either way."""
    noise_color: float
    """How alike the action noise of neighboring steps is while collecting: the exponent of its
    spectrum. 0: white, steps are independent; 1: pink; 2: red (Eberhard et al. 2023)."""
    tau: float
    """Share of the way that the target critics move towards the critics."""
    target_update_interval: int
    """Updates per step of the target critics."""
    actor_update_interval: int
    """Updates of the critics per update of the actor and the temperature."""
    num_critics: int
    """E, critics in the ensemble."""
    critic_subset: int | None
    """M, critics drawn anew at each update whose minimum makes the target. None: all of them."""
    actor_follows: Literal["min", "mean"] | None
    """What of all critics the actor maximizes: their minimum or their mean. None: the mean with
    critic_subset, else the minimum."""
    critic_layer_norm: bool
    """Whether the critics have layer normalization before each activation."""
    critic_dropout: float
    """Share of the critics' hidden outputs that is dropped."""
    learning_rate: float
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"]
    """How learning_rate, and in proportion the three below, changes with env_steps; linear
    reaches 0 at total_env_steps."""
    actor_learning_rate: float | None
    """Adam's step size for the actor. None: learning_rate."""
    critic_learning_rate: float | None
    """Adam's step size for the critics. None: learning_rate."""
    alpha_learning_rate: float | None
    """Adam's step size for the temperature. None: learning_rate."""
    critic_hidden_sizes: Sequence[int]
    """Widths of the critics' hidden layers; hidden_sizes are the actor's."""
    adam_momentum: float
    """Weight of the past in Adam's mean of gradients, beta 1, of actor and critics; the
    temperature keeps 0.9."""
    renorm_momentum: float
    """Weight of the past in the running statistics of batch renormalization."""
    renorm_warmup: int
    """Batches that each network learns from before its renormalization looks at the running
    statistics."""


class DIAYNOptions(RunOptions, total=False):
    """Settings of a run of diayn."""

    num_envs: int
    """B, environments stepped in parallel."""
    rollout_length: int
    """T, env_steps per environment per iteration; the iteration's updates follow."""
    batch_size: int
    """Transitions (or sequences) per update. A smaller batch makes more updates: per env_step
    there are replay_ratio / samples per update."""
    gamma: float
    """Discount per env_step, in [0, 1]."""
    n_step: int
    """Rewards summed before bootstrapping."""
    replay_size: int
    """Transitions kept, over all environments; the oldest make room."""
    replay_ratio: float
    """Samples consumed by updates per sample collected: updates per iteration = replay_ratio * T
    * B / samples per update. What is left over is carried on."""
    learning_starts: int
    """env_steps collected before the first update."""
    replay: Literal["plain", "her"]
    """plain: transitions are learned from as they were collected. her: hindsight experience
    replay, for goal environments; in a share of each batch the goal is replaced by one that
    the same episode reached later (Andrychowicz et al. 2017)."""
    her_share: float
    """That share, in [0, 1]: k / (k + 1) for k replaced goals beside each true one."""
    replay_storage: Literal["memory", "memmap", "device"]
    """Where transitions lie: main memory, a file in the run directory, or the device."""
    replay_frame_stack: int | None
    """Frames on the first axis of an observation, newest last, of which each is stored once.
    None: as the environment is known to stack them (ALE); 1: observations are stored whole."""
    prioritized: bool
    """Whether samples are drawn in proportion to their TD error (Schaul et al. 2016)."""
    priority_alpha: float
    """Exponent of the priorities; 0 is uniform."""
    priority_beta: float
    """Exponent of the importance weights at the start; it rises to 1 at total_env_steps."""
    alpha: float | None
    """Temperature, the weight of the entropy. None: learned."""
    initial_alpha: float
    """Where the learned temperature starts."""
    target_entropy: float | None
    """Entropy in nats that the learned temperature steers to. None: -dim(A) for Box actions,
    target_entropy_scale * log |A| for Discrete ones, where A are the actions that the action
    mask of each observation allows."""
    target_entropy_scale: float
    """Share of the largest entropy, log |A|, that Discrete actions are steered to. At 0.5 the
    better one of two choices has a probability of 0.89, at the paper's 0.98 one of 0.58."""
    backup_entropy: bool | None
    """Whether the critics' target counts the entropy of the next actions, as the paper's does.
    None: for Box actions, not for Discrete ones, where it can outgrow the reward (Asad et al.
    2025, arXiv:2509.09838). The actor's loss counts the entropy either way."""
    noise_color: float
    """How alike the action noise of neighboring steps is while collecting: the exponent of its
    spectrum. 0: white, steps are independent; 1: pink; 2: red (Eberhard et al. 2023)."""
    tau: float
    """Share of the way that the target critics move towards the critics."""
    target_update_interval: int
    """Updates per step of the target critics."""
    actor_update_interval: int
    """Updates of the critics per update of the actor and the temperature."""
    num_critics: int
    """E, critics in the ensemble."""
    critic_subset: int | None
    """M, critics drawn anew at each update whose minimum makes the target. None: all of them."""
    actor_follows: Literal["min", "mean"] | None
    """What of all critics the actor maximizes: their minimum or their mean. None: the mean with
    critic_subset, else the minimum."""
    critic_layer_norm: bool
    """Whether the critics have layer normalization before each activation."""
    critic_dropout: float
    """Share of the critics' hidden outputs that is dropped."""
    learning_rate: float
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"]
    """How learning_rate, and in proportion the three below, changes with env_steps; linear
    reaches 0 at total_env_steps."""
    actor_learning_rate: float | None
    """Adam's step size for the actor. None: learning_rate."""
    critic_learning_rate: float | None
    """Adam's step size for the critics. None: learning_rate."""
    alpha_learning_rate: float | None
    """Adam's step size for the temperature. None: learning_rate."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critics' hidden layers. None: hidden_sizes, which the actor has."""
    num_skills: int
    """K, skills to tell apart."""
    skill_length: int
    """env_steps per environment for which it keeps its skill, rounded up to whole rollouts."""
    discriminator_learning_rate: float | None
    """Adam's step size for the discriminator. None: learning_rate."""


class BCOptions(RunOptions, total=False):
    """Settings of a run of bc."""

    batch_size: int
    """N, recorded steps per update."""
    policy_of: Literal["auto", "sac", "ppo"]
    """Whose policy learns, so that a run of that algorithm can begin with it (init_from). auto:
    that of sac for Discrete and for bounded Box actions, that of ppo for others."""
    entropy_coef: float
    """Weight of the entropy bonus, which keeps a policy that explains its data from ruling out
    everything else."""
    learning_rate: float
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"]
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    max_grad_norm: float
    """Gradients are scaled down to this L2 norm; 0 switches clipping off."""


class AnyOptions(RunOptions, total=False):
    """Settings of any built-in algorithm."""

    num_envs: int
    """B, environments stepped in parallel."""
    rollout_length: int
    """T, env_steps per environment per iteration; the iteration's updates follow."""
    num_epochs: int
    """Passes over each rollout."""
    num_minibatches: int | None
    """Equal parts of a rollout (of its environments, for a recurrent policy). None: as many as
    leave at least 64 samples to each; for a recurrent policy at most 4."""
    gamma: float
    """Discount per env_step, in [0, 1]."""
    gae_lambda: float
    """Lambda of generalized advantage estimation, in [0, 1]."""
    clip_range: float
    """Epsilon: the ratio is clipped to [1 - epsilon, 1 + epsilon]."""
    clip_range_schedule: Literal["constant", "linear"]
    """How clip_range changes with env_steps; linear reaches 0 at total_env_steps."""
    clip_range_value: float | None
    """Largest change of the value prediction that the value loss rewards; None: unclipped."""
    normalize_advantage: bool
    """Whether advantages get mean 0 and standard deviation 1 in each minibatch."""
    value_coef: float
    """Weight of the value loss."""
    entropy_coef: float
    """Weight of the entropy bonus, which keeps a policy that explains its data from ruling out
    everything else."""
    entropy_coef_schedule: Literal["constant", "linear"]
    """How entropy_coef changes with env_steps; linear reaches 0 at total_env_steps."""
    learning_rate: float
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"]
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    adam_eps: float
    """Adam's epsilon. R2D2's is 1e-3 for a loss that is summed over a sequence; of the mean it
    is 1e-3 / sequence_length."""
    max_grad_norm: float
    """Gradients are scaled down to this L2 norm; 0 switches clipping off."""
    target_kl: float | None
    """Skip the rest of an iteration's steps once the KL estimate passes this, in nats. None:
    never."""
    scale_reward: bool
    """Whether rewards are divided by the running standard deviation of the discounted return,
    and then clipped to [-10, 10]. Logged returns are the true ones."""
    noise_color: float
    """How alike the action noise of neighboring steps is while collecting: the exponent of its
    spectrum. 0: white, steps are independent; 1: pink; 2: red (Eberhard et al. 2023)."""
    critic_hidden_sizes: Sequence[int] | None
    """Widths of the critics' hidden layers. None: hidden_sizes, which the actor has."""
    optimizer: Literal["rmsprop", "adam"]
    """Which optimizer; RMSprop (smoothing 0.99) is the original's."""
    optimizer_eps: float
    """The optimizer's epsilon."""
    rho_bar: float
    """Largest importance ratio in the temporal difference and the advantage."""
    c_bar: float
    """Largest importance ratio in how far back a difference reaches; at most rho_bar."""
    batch_size: int
    """N, recorded steps per update."""
    n_step: int
    """Rewards summed before bootstrapping."""
    replay_size: int
    """Transitions kept, over all environments; the oldest make room."""
    replay_ratio: float
    """Samples consumed by updates per sample collected: updates per iteration = replay_ratio * T
    * B / samples per update. What is left over is carried on."""
    learning_starts: int
    """env_steps collected before the first update."""
    replay: Literal["plain", "her"]
    """plain: transitions are learned from as they were collected. her: hindsight experience
    replay, for goal environments; in a share of each batch the goal is replaced by one that
    the same episode reached later (Andrychowicz et al. 2017)."""
    her_share: float
    """That share, in [0, 1]: k / (k + 1) for k replaced goals beside each true one."""
    replay_storage: Literal["memory", "memmap", "device"]
    """Where transitions lie: main memory, a file in the run directory, or the device."""
    replay_frame_stack: int | None
    """Frames on the first axis of an observation, newest last, of which each is stored once.
    None: as the environment is known to stack them (ALE); 1: observations are stored whole."""
    prioritized: bool
    """Whether samples are drawn in proportion to their TD error (Schaul et al. 2016)."""
    priority_alpha: float
    """Exponent of the priorities; 0 is uniform."""
    priority_beta: float
    """Exponent of the importance weights at the start; it rises to 1 at total_env_steps."""
    double_q: bool
    """Whether the online network chooses the action that the target network values (van Hasselt
    et al. 2016)."""
    dueling: bool
    """Whether Q is a state value plus advantages less their mean over actions (Wang et al.
    2016)."""
    head_hidden_sizes: Sequence[int]
    """Hidden layers of each stream between the torso (or core) and the outputs."""
    huber_threshold: float | None
    """TD errors beyond it count linearly. None: squared error."""
    target_update_interval: int
    """Updates per step of the target critics."""
    tau: float
    """Share of the way that the target critics move towards the critics."""
    epsilon_schedule: Literal["linear", "ape-x"]
    """linear: one epsilon for all environments, falling with global env_steps. ape-x: a constant
    one for each environment, ape_x_epsilon^(1 + ape_x_alpha * i / (B - 1))."""
    epsilon_initial: float
    """Share of random actions at the start (linear)."""
    epsilon_final: float
    """Share of random actions from epsilon_fraction * total_env_steps on (linear)."""
    epsilon_fraction: float
    """Part of total_env_steps in which epsilon falls (linear); 0: epsilon_final at once."""
    ape_x_epsilon: float
    """Epsilon of the first environment, the most exploring one (ape-x)."""
    ape_x_alpha: float
    """How much less the last environment explores, as an exponent (ape-x)."""
    noisy: bool
    """Whether the layers after the torso have noisy weights (Fortunato et al. 2018). They
    explore by themselves once learning has started: use a small epsilon_final, such as 0."""
    noisy_std: float
    """Initial standard deviation of the noisy weights, times the square root of fan-in."""
    value_distribution: Literal["none", "categorical", "quantile", "implicit"]
    """What is learned of the return: its mean, C51's categorical distribution, QR-DQN's fixed
    quantiles, or IQN's implicit quantile function."""
    num_atoms: int
    """Atoms of the categorical distribution."""
    v_min: float
    """Value of its first atom: the least discounted return to tell apart."""
    v_max: float
    """Value of its last atom: the greatest."""
    num_quantiles: int
    """M, quantiles of each critic."""
    num_fractions: int
    """Fractions drawn for the predictions of the implicit distribution (N of IQN)."""
    num_target_fractions: int
    """Fractions drawn for its targets (N')."""
    num_acting_fractions: int
    """Evenly spaced fractions whose mean is the value that acts and is maximized (K)."""
    priority_eta: float
    """Priority of a sequence = eta * greatest + (1 - eta) * mean TD error of its rows."""
    sequence_length: int
    """Rows of a sequence that are learned from."""
    burn_in: int
    """Rows before those, which only warm the recurrent state up."""
    state_interval: int
    """Rows from one sequence's start to the next one's, where the state is stored; a multiple of
    rollout_length."""
    value_rescaling: bool
    """Whether Q is learned of h(return), h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x, which
    takes the place of clipped rewards."""
    exploration_noise: float
    """Standard deviation of the noise on actions while collecting."""
    actor_learning_rate: float | None
    """Adam's step size for the actor. None: learning_rate."""
    critic_learning_rate: float | None
    """Adam's step size for the critics. None: learning_rate."""
    target_noise: float
    """Standard deviation of the noise on the target policy's actions."""
    target_noise_clip: float
    """Bound of that noise, c."""
    policy_delay: int
    """Updates of the critics per update of the actor and of all targets, d."""
    num_critics: int
    """E, critics in the ensemble."""
    alpha: float | None
    """Temperature, the weight of the entropy. None: learned."""
    initial_alpha: float
    """Where the learned temperature starts."""
    target_entropy: float | None
    """Entropy in nats that the learned temperature steers to. None: -dim(A) for Box actions,
    target_entropy_scale * log |A| for Discrete ones, where A are the actions that the action
    mask of each observation allows."""
    target_entropy_scale: float
    """Share of the largest entropy, log |A|, that Discrete actions are steered to. At 0.5 the
    better one of two choices has a probability of 0.89, at the paper's 0.98 one of 0.58."""
    backup_entropy: bool | None
    """Whether the critics' target counts the entropy of the next actions, as the paper's does.
    None: for Box actions, not for Discrete ones, where it can outgrow the reward (Asad et al.
    2025, arXiv:2509.09838). The actor's loss counts the entropy either way."""
    actor_update_interval: int
    """Updates of the critics per update of the actor and the temperature."""
    critic_subset: int | None
    """M, critics drawn anew at each update whose minimum makes the target. None: all of them."""
    actor_follows: Literal["min", "mean"] | None
    """What of all critics the actor maximizes: their minimum or their mean. None: the mean with
    critic_subset, else the minimum."""
    critic_layer_norm: bool
    """Whether the critics have layer normalization before each activation."""
    critic_dropout: float
    """Share of the critics' hidden outputs that is dropped."""
    alpha_learning_rate: float | None
    """Adam's step size for the temperature. None: learning_rate."""
    dropped_quantiles: int
    """d, of each critic's quantiles so many are left out of the target: the largest of all E *
    M, d * E of them. More of them hold values down further."""
    adam_momentum: float
    """Weight of the past in Adam's mean of gradients, beta 1, of actor and critics; the
    temperature keeps 0.9."""
    renorm_momentum: float
    """Weight of the past in the running statistics of batch renormalization."""
    renorm_warmup: int
    """Batches that each network learns from before its renormalization looks at the running
    statistics."""
    num_skills: int
    """K, skills to tell apart."""
    skill_length: int
    """env_steps per environment for which it keeps its skill, rounded up to whole rollouts."""
    discriminator_learning_rate: float | None
    """Adam's step size for the discriminator. None: learning_rate."""
    policy_of: Literal["auto", "sac", "ppo"]
    """Whose policy learns, so that a run of that algorithm can begin with it (init_from). auto:
    that of sac for Discrete and for bounded Box actions, that of ppo for others."""


@overload
def train(
    algorithm: Literal["ppo"],
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Unpack[PPOOptions],
) -> Run: ...


@overload
def train(
    algorithm: Literal["a2c"],
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Unpack[A2COptions],
) -> Run: ...


@overload
def train(
    algorithm: Literal["reinforce"],
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Unpack[REINFORCEOptions],
) -> Run: ...


@overload
def train(
    algorithm: Literal["impala"],
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Unpack[IMPALAOptions],
) -> Run: ...


@overload
def train(
    algorithm: Literal["appo"],
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Unpack[APPOOptions],
) -> Run: ...


@overload
def train(
    algorithm: Literal["dqn"],
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Unpack[DQNOptions],
) -> Run: ...


@overload
def train(
    algorithm: Literal["r2d1"],
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Unpack[R2D1Options],
) -> Run: ...


@overload
def train(
    algorithm: Literal["ddpg"],
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Unpack[DDPGOptions],
) -> Run: ...


@overload
def train(
    algorithm: Literal["td3"],
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Unpack[TD3Options],
) -> Run: ...


@overload
def train(
    algorithm: Literal["sac"],
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Unpack[SACOptions],
) -> Run: ...


@overload
def train(
    algorithm: Literal["tqc"],
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Unpack[TQCOptions],
) -> Run: ...


@overload
def train(
    algorithm: Literal["crossq"],
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Unpack[CROSSQOptions],
) -> Run: ...


@overload
def train(
    algorithm: Literal["diayn"],
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Unpack[DIAYNOptions],
) -> Run: ...


@overload
def train(
    algorithm: Literal["bc"],
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Unpack[BCOptions],
) -> Run: ...


@overload
def train(
    algorithm: str,
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Unpack[AnyOptions],
) -> Run: ...


@overload
def train(
    algorithm: type[Algorithm],
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Run: ...


@overload
def train(
    algorithm: None = None,
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Run: ...


def train(algorithm: str | type[Algorithm] | None = None, *args: Any, **settings: Any) -> Run:
    """See `redline.train.runs.start.train`."""
    raise NotImplementedError
