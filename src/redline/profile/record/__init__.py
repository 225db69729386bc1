"""The recording side: what runs inside the profiled program."""
