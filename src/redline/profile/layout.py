"""The session directory: what both its writer and its reader know.

```
DIR/
  session.json                 format, version, mode, command, machine; hashes of all files
  lock                         held while the process that made the session lives
  processes/<pid>-<start>/
    process.jsonl              a JSON object per line: start, name, progress, end, ...
    names.jsonl                [id, kind, name, level, module] per line
    thread-00000.arrow         events of one thread: delta_ns uint32, code uint16
    monitor.arrow              heartbeats, resident memory, CPU time of the process
    scheduler.arrow            how long each thread ran, and was ready to, every 20 ms: TICK_* rows
    sampled.arrow              levels seen by the sampler: rows of a level, or GAP
    stacks.jsonl                 Python lines seen: code, node and at rows, see csrc/stacks.c
    gpu-00000.json             what the GPU collector saw in one window, as the collector wrote it
    gpu.jsonl                  one JSON object per window: begin, end, file, or why there is none
  samples.jsonl                CPU per core, memory per process, and GPU readings, over time
```

Rows of a shard are in time order. A code of 16 and more is `2 * id + is_end` for the name `id`;
lower codes are the `CODE_*` below. `delta_ns` counts from the row before; a number that does not
fit comes as two rows, `CODE_HIGH` with the high bits first. Each batch begins with `CODE_ANCHOR`,
the absolute time in ns since the process's `base_ns`. Everything is appended; only
`session.json` is rewritten, once, when the recording ends (`seal.py`). What a killed process leaves
is readable up to its last batch.
"""

from __future__ import annotations

FORMAT = "redline-profile"
VERSION = 1

(
    CODE_STEP,
    CODE_PROBE_ON,
    CODE_PROBE_OFF,
    CODE_WINDOW_ON,
    CODE_WINDOW_OFF,
    CODE_THREAD_END,
    CODE_ANCHOR,
    CODE_HIGH,
    CODE_CPU,
    CODE_CALLBACKS,
    CODE_DROPPED,
    CODE_RSS,
    CODE_PROCESS_CPU,
    CODE_BEAT,
) = range(1, 15)

SAMPLES_SHARD = "sampled.arrow"
STACKS = "stacks.jsonl"
SCHEDULER_SHARD = "scheduler.arrow"
# Its rows, behind the absolute time of each tick: a thread's index, and ns since the last tick, as
# two rows where one cannot hold them. A thread without rows slept. `TICK_FIRST` has the index of
# one that is looked at from then on. `TICK_AT` and `TICK_OFF`, behind a thread's index, are a pair:
# the time of an event of its, ns since the process's base, and for how many ns of the time to the
# next one it had no core, or slept.
TICK_THREAD, TICK_RAN, TICK_READY, TICK_FIRST, TICK_AT, TICK_OFF = range(1, 7)
LARGEST_HIGH = 1 << 20  # high bits of a time that can be: 52 days; RL_LARGEST_HIGH of recorder.h
MAX_DEPTH = 2048  # of marks and native calls within one another; RL_MAX_DEPTH of recorder.h
SAMPLED_GAP = 0xFFFF  # in place of a level: time passes, nothing was looked at
MACHINE_SAMPLES = "samples.jsonl"
GPU_NOTES = "gpu.jsonl"
# In place of the module of an operation's name: its begins complete no env step, as a reset's.
WITHOUT_STEP = "without a step"
# The same: a framework's own word, not a mark of the program's.
FRAMEWORK = "framework"
GPU_COLLECTOR = "gpu collector"  # the operation in which the profiler's own thread closes a window
WATCHED = "watched"  # of a process's metadata: what `--watch` named and was found

ENVIRONMENT = "REDLINE_PROFILE"
PACKAGE_PATH = "REDLINE_PROFILE_PACKAGE"
MAX_IDS = 32768
KINDS = {"operation": 0, "inferred": 1, "phase": 2, "call": 3}
