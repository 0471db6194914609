"""`python -m ppmn.cli`, for torchrun and for environments without the `ppmn` script."""

import sys

from ppmn.cli import main

sys.exit(main())
