"""`python -m redline.profile`."""

import sys

from redline.profile.commands import main

sys.exit(main())
