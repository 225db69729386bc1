"""What the commands of `redline` do; `redline.cli` calls one. Imports nothing."""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    "train": "redline.command_line.train:train",
    "runs": "redline.command_line.run_list:list_runs",
    "watch": "redline.command_line.watch:watch",
    "presets": "redline.command_line.preset_list:list_presets",
    "eval": "redline.command_line.runs:eval_runs",
    "collect": "redline.command_line.runs:collect",
    "inspect": "redline.command_line.runs:inspect_run",
    "plot": "redline.command_line.runs:plot",
    "export": "redline.command_line.runs:export",
    "sweep": "redline.command_line.launch:sweep",
    "tune": "redline.command_line.launch:tune",
    "compare": "redline.command_line.launch:compare",
    "profile": "redline.profile.commands:profile_main",
    "report": "redline.profile.commands:report_main",
    "trace": "redline.profile.commands:trace_main",
    "advise": "redline.profile.commands:advise_main",
    "diff": "redline.profile.commands:diff_main",
    "inspect-session": "redline.profile.commands:inspect_main",
    "sessions": "redline.profile.commands:sessions_main",
    "merge-sessions": "redline.profile.commands:merge_main",
    "completion": "redline.command_line.completion:print_completion",
}
"""Command -> module:function: the further arguments -> an exit code or None."""
