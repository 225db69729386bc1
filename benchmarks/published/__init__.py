"""Learning at the lengths that the field publishes: hours of runs that survive being killed.

| file | what it does |
|---|---|
| `experiments` | which algorithm on which environment, how long, how many seeds |
| `references` | what others published, each with its protocol |
| `one_run` | one seed in a process of its own: train or go on, then evaluate |
| `running` | as many of those at once as there are cores, and the state of all |
| `records` | what finished runs reached, as kept in the repository |
| `page` | the tables and figures made of the records |
"""
