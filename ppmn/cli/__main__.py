"""`python -m ppmn.cli`, as torchrun starts it."""

import sys

from ppmn.cli import main

sys.exit(main())
