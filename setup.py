"""The C extensions; everything else about the package is in pyproject.toml.

They are optional: where no C compiler is found the package still installs. Without them marks do
nothing, starting a profile says that the extension is missing, and a priority tree is searched by
torch, which gives the same results. The CPU engine computes small networks by numpy, and leaves
convolutions to torch. Wheels are built with REDLINE_REQUIRE_EXTENSIONS=1, so that none lacks one
by mistake.
"""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup

CSRC = "src/redline/profile/csrc"
NATIVE = ("native", "ring", "writer", "marks", "wrapper", "release", "boundary", "counters")
NATIVE += ("generators", "classes")
OWN_FILE, WAITING = f"{CSRC}/own_file.h", f"{CSRC}/waiting.h"
SWEEP = ("sweep", "decode", "batches", "rows", "ticks", "calls")
INSTRUCTIONS = "src/redline/engines/cpu/csrc/instructions.h"
THREADS = "src/redline/engines/cpu/csrc/threads.h"
# Where the tensor library's threads are looked for; other systems have no such library.
DL = ["dl"] if sys.platform == "linux" else []
OPTIONAL = not os.environ.get("REDLINE_REQUIRE_EXTENSIONS")
FLAGS = ["-std=gnu11", "-O3", "-Wall", "-Wextra", "-fvisibility=hidden"]

setup(
    options={"build_ext": {"parallel": os.cpu_count()}},
    ext_modules=[
        Extension(
            "redline.profile._native",
            sources=[f"{CSRC}/{name}.c" for name in NATIVE],
            depends=[f"{CSRC}/recorder.h", f"{CSRC}/arrow_stream.h", WAITING],
            extra_compile_args=[*FLAGS, "-pthread"],
            extra_link_args=["-pthread"],
            optional=OPTIONAL,
        ),
        Extension(
            "redline.profile._sweep",
            sources=[f"{CSRC}/{name}.c" for name in SWEEP],
            depends=[f"{CSRC}/sweep.h", f"{CSRC}/arrow_stream.h"],
            extra_compile_args=FLAGS,
            optional=OPTIONAL,
        ),
        Extension(
            "redline.profile._sampler",
            sources=[f"{CSRC}/sampler.c"],
            depends=[f"{CSRC}/arrow_stream.h", OWN_FILE, WAITING],
            extra_compile_args=[*FLAGS, "-pthread"],
            extra_link_args=["-pthread"],
            optional=OPTIONAL,
        ),
        Extension(
            "redline.profile._stacks",
            sources=[f"{CSRC}/stacks.c"],
            depends=[OWN_FILE, WAITING],
            extra_compile_args=[*FLAGS, "-pthread"],
            extra_link_args=["-pthread"],
            optional=OPTIONAL,
        ),
        Extension(
            "redline.replay._tree",
            sources=["src/redline/replay/csrc/tree.c"],
            # Sums must round as those of the tensor code do.
            extra_compile_args=[*FLAGS, "-ffp-contract=off"],
            optional=OPTIONAL,
        ),
        Extension(
            "redline.engines.cpu._dense",
            sources=["src/redline/engines/cpu/csrc/dense.c"],
            depends=["src/redline/engines/cpu/csrc/product.h", THREADS, INSTRUCTIONS],
            extra_compile_args=FLAGS,
            libraries=DL,
            optional=OPTIONAL,
        ),
        Extension(
            "redline.engines.cpu._convolution",
            sources=["src/redline/engines/cpu/csrc/convolution.c"],
            depends=["src/redline/engines/cpu/csrc/patches.h", THREADS, INSTRUCTIONS],
            extra_compile_args=FLAGS,
            libraries=DL,
            optional=OPTIONAL,
        ),
    ],
)
