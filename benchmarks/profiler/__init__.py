"""What profiling costs, how true its figures are, and how fast sessions are analyzed.

    python -m benchmarks.profiler programs [--python PYTHON] [--rounds 5]
    python -m benchmarks.profiler light [--python PYTHON]
    python -m benchmarks.profiler full [--python PYTHON]
    python -m benchmarks.profiler shares [--python PYTHON]
    python -m benchmarks.profiler table --python-version 3.12
    python -m benchmarks.profiler sweep

| command | measures |
|---|---|
| `programs` | eight programs, each unprofiled, light and full in alternation |
| `light` | what light mode costs, within one run of each program |
| `full` | the same of full mode, and the error of what its reports correct |
| `shares` | level shares of full mode beside a sampler's in the same run |
| `table` | nothing: writes the tables of what `programs` has recorded so far anew |
| `sweep` | intervals per second on one core; analysis of 10 million events, end to end |

Where other programs make whole runs differ by more than recording costs, `light` and `full` still
tell. `programs` shows the overhead, the error of corrected times, the share of time that was
attributed, and the level shares beside the sampler's. It records after every round, into
benchmarks/results/profiler/python-X.Y.json, with the tables in the .md beside it and a list that
`redline report --bias` draws in python-X.Y-bias.json. Stopped, it goes on where it was. Measure on
a machine that does nothing else.
"""
