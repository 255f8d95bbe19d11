"""Pullback: the Jacobian of any PyTorch computation as one object, and backward passes with checked seeds."""

from pullback import errors as errors
from pullback.api import seed as seed
from pullback.api.backward import backward as backward
from pullback.api.backward import grad as grad
from pullback.api.graph import graph as graph
from pullback.api.jacobian import hessian as hessian
from pullback.api.jacobian import jacobian as jacobian
from pullback.api.jacobian import jacobian_of as jacobian_of
from pullback.api.prepare import Prepared as Prepared
from pullback.api.prepare import prepare as prepare
from pullback.data.pattern import Pattern as Pattern
from pullback.graph.graph import Graph as Graph
from pullback.graph.leaks.watch import watch_graphs as watch_graphs
from pullback.graph.recording.record import record as record
from pullback.jacobian.jacobian import Jacobian as Jacobian

__all__ = [
    "Graph",
    "Jacobian",
    "Pattern",
    "Prepared",
    "backward",
    "errors",
    "grad",
    "graph",
    "hessian",
    "jacobian",
    "jacobian_of",
    "prepare",
    "record",
    "seed",
    "watch_graphs",
]
__version__ = "0.1.0"
