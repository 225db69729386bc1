"""Let a Python process join the profile session that its environment names.

Found first on PYTHONPATH by every Python process the profiled program starts. Runs the
sitecustomize that would have been found otherwise, then starts to record. Must never be the reason
that a program fails: what goes wrong is printed, and the program goes on unprofiled.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_hidden_sitecustomize() -> None:
    from importlib.machinery import PathFinder

    elsewhere = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _find_redline() -> None:
    """Import the package, whose other modules are then found without `sys.path`.

    What else lies beside it is not for this program, which may have another environment.
    """
    try:
        import redline  # pyright: ignore[reportUnusedImport]
    except ImportError:
        sys.path.append(os.environ.get("REDLINE_PROFILE_PACKAGE", ""))
        try:
            import redline  # noqa: F401
        finally:
            sys.path.pop()


def _join() -> None:
    settings = os.environ.get("REDLINE_PROFILE")
    arguments = getattr(sys, "orig_argv", ())
    # multiprocessing's book-keeping helper sleeps all its life and is nobody's work.
    if not settings or any("multiprocessing.resource_tracker" in a for a in arguments):
        return
    try:
        _find_redline()
        from pathlib import Path

        from redline.profile.record.options import Options
        from redline.profile.record.recorder import join

        directory, _, options = settings.partition("\n")
        join(Path(directory), Options.from_json(options))
    except Exception as error:  # noqa: BLE001  (the program must run, whatever this meets)
        sys.stderr.write(f"redline.profile: this process is not profiled: {error}\n")


try:
    _run_hidden_sitecustomize()
finally:
    _join()
