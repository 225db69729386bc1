"""Show a session: text, JSON, a trace for Perfetto, the difference of two."""
