"""The environments that Redline brings along.

| module | what it holds |
|---|---|
| `ids` | the ids of native games, and the originals that they follow; no torch |
| `native` | `NativeEnv`: B copies of any native game, with time limit, autoreset, accounting |
| `game`, `minatar_game` | what one native game supplies; each game has a file of its own |
| `randomness` | counter-based random numbers, one stream per environment |
| `minatar` | MinAtar's games as Gymnasium environments |
| `memory_tasks` | two Gymnasium environments that need memory |
| `goal_tasks` | two Gymnasium environments with goals, for hindsight experience replay |
"""
