"""Worker processes, and what they share with their parent."""
