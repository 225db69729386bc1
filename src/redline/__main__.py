"""`python -m redline`."""

from redline.cli import run_and_exit

run_and_exit()
