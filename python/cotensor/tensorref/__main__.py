"""Records a script: see :mod:`cotensor.tensorref.record`."""

import sys

from .record import main

sys.exit(main(sys.argv[1:]))
