"""Names of the files in a run directory."""

CONFIG_FILE = "config.json"
PROGRESS_FILE = "progress.csv"
HISTORY_FILE = "history.jsonl"
LOCK_FILE = ".lock"
