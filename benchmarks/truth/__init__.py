"""Programs whose times are known, and what the profiler says of them.

    python -m benchmarks.truth [--python PYTHON ...] [--only NAME ...] [--seconds 4]

Each program is a loop over marked parts, and says how much CPU time each part took, or for a part
that waits how long it took: without the profiler, and as often with it in full mode, in turn. A row
is right if the corrected time is within 6% of the truth, or the truth within the interval that the
report prints beside it.

No program needs more than the interpreter and a C compiler: the native code is the tests' stub. So
the table is measured on every Python that the profiler's extensions are built for.
"""
