"""Many runs: sweeps over slots of cores and GPUs, comparisons, searches, clusters.

| file | holds |
|---|---|
| `sweep_file` | the file that describes a sweep |
| `variants` | the runs that it stands for, and their names |
| `checking` | every setting of every run, checked before the first starts |
| `state` | what has been done, in one SQLite file |
| `locks` | which processes are at work |
| `slots` | cores, GPUs and memory, dealt out |
| `local` | runs as processes on slots of this machine |
| `ray_places` | runs as tasks of a Ray cluster |
| `run_process` | the process of one run |
| `launcher` | which run goes where, and what becomes of it |
| `status` | how far a sweep is |
| `sweep` | `redline.sweep` |
| `tuning` | searches with Optuna |
| `search_spaces` | what is searched |
| `scores` | runs to compare, what tells them apart, a score for each |
| `comparison` | means, interquartile means, intervals, probability of improvement |
| `comparison_tables`, `comparison_figures` | the same for people |

Importing this package imports nothing: `redline sweep status` must answer at once.
"""
