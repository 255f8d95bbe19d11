"""Benchmarks: dense and sparse Jacobians against the peers; what a seeded backward and an import cost."""

import os

# The profiler, which counts bytes, says on stderr when it starts and stops, and of which bytes it knows nothing. This
# must stand before torch is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
