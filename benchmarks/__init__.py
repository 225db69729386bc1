"""Side-by-side measurements and their recorded results."""
