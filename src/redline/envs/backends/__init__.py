"""What steps environments: one class per back end.

| module | back end |
|---|---|
| `backend` | the contract, and tools for whoever writes one |
| `registry` | which there are, and how one is found |
| `env_loop` | `gymnasium`: single environments in this process |
| `processes` | `processes`: the same in worker processes |
| `ale`, `envpool` | simulators with threads of their own |
| `device` | `device`: native games in tensor operations |
| `vector_env` | `vector`: a ready `gymnasium.vector.VectorEnv` |
"""
