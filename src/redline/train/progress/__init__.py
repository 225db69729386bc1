"""What a run reports: rows, curves, the console."""
