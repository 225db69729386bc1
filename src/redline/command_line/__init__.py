"""What the commands of `redline` do; `redline.cli` chooses one."""
