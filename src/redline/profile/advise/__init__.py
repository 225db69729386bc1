"""What to change in a program, and what each change would gain.

| module | holds |
|---|---|
| `iteration` | the time per env step of the learning process, part by part, in the steady state |
| `rates` | what this machine is asked: threads, fused steps, messages between processes |
| `remedies` | a prediction for each change, from these two |
| `report` | the ranking as text |
| `check` | alternating runs of two commands, beside the prediction |
"""
