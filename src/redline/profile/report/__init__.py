"""Show a summary: text, JSON."""
