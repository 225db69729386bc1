"""What the GPU did: collected in bounded windows, joined with the CPU's timeline afterwards.

| module | does |
|---|---|
| `collector` | the interface of a collector, and Kineto behind it |
| `windows` | opens and closes the windows in the profiled program |
| `records` | a window's trace as arrays, converted in bulk |
| `activity` | busy time, launched by, concurrent with |
"""
