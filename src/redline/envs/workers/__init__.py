"""Worker processes under supervision; they know nothing of environments.

| module | side | what it holds |
|---|---|---|
| `supervisor` | parent | `WorkerGroup`: starts workers, exchanges commands and replies, ends them |
| `worker_process` | parent | one process and its pipes |
| `hang_timeout` | parent | when a worker counts as hung |
| `worker_main` | worker | the loop that answers commands |
| `signals`, `shared_memory` | both | signals without data, and data without copies |
"""
