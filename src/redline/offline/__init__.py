"""Episodes that were recorded before: to learn from without an environment, or to begin with.

| file | what it holds |
|---|---|
| `episodes.py` | `RecordedEpisodes`: whole episodes as arrays, and what they must be |
| `spaces.py` | from what an environment takes and gives to what Redline carries, and back |
| `files.py` | `read_episodes` and `write_episodes`: .npz files and Minari datasets |
| `rollouts.py` | recorded episodes as rollouts, which replay takes |

Data may come from strangers: what is read are arrays and numbers, never objects or code.
"""

from redline.offline.episodes import RecordedEpisodes
from redline.offline.files import read_episodes, write_episodes
from redline.offline.rollouts import as_rollouts
from redline.offline.spaces import CarriedSpaces

__all__ = [
    "CarriedSpaces",
    "RecordedEpisodes",
    "as_rollouts",
    "read_episodes",
    "write_episodes",
]
