"""Names of the files in a run directory."""

CONFIG_FILE = "config.json"
PROGRESS_FILE = "progress.csv"
HISTORY_FILE = "history.jsonl"
LARGEST_HISTORY = 2**24  # bytes; a session writes some hundreds
LOCK_FILE = ".lock"
