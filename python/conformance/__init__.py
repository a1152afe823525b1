"""Compares offloaded operations, modules and optimizers with PyTorch, on the databases of PyTorch's own tests.

``python -m conformance`` runs a program of each sample on the host, on the simulated device (``model.to("simulated")``), and
offloaded with each strategy and memory. A sample passes if all results, gradients and errors equal those of the host bit by bit.
"""

import os

# MKL's products otherwise depend on the alignment of rows, which copies change. MKL reads this at its first call.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")
