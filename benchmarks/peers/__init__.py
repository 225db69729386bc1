"""Programs that run another library; each in the interpreter that has it."""
