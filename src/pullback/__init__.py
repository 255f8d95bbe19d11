"""Pullback: the Jacobian of any PyTorch computation as one object, and backward passes with checked seeds."""

from pullback import errors as errors
from pullback.api import combine as combine
from pullback.api import seed as seed
from pullback.api.backward import backward as backward
from pullback.api.backward import grad as grad
from pullback.api.conflicts import conflicts as conflicts
from pullback.api.graph import graph as graph
from pullback.api.jacobian import hessian as hessian
from pullback.api.jacobian import jacobian as jacobian
from pullback.api.jacobian import jacobian_of as jacobian_of
from pullback.api.prepare import Prepared as Prepared
from pullback.api.prepare import prepare as prepare
from pullback.check.door import check as check
from pullback.data.pattern import Pattern as Pattern
from pullback.diagnose.doors import explain_errors as explain_errors
from pullback.diagnose.doors import install as install
from pullback.diagnose.session import explain as explain
from pullback.graph.graph import Graph as Graph
from pullback.graph.leaks.watch import watch_graphs as watch_graphs
from pullback.graph.recording.record import record as record
from pullback.jacobian.jacobian import Jacobian as Jacobian
from pullback.precision.verb import precision as precision
from pullback.precision.watch import autocast_watch as autocast_watch

__all__ = [
    "Graph",
    "Jacobian",
    "Pattern",
    "Prepared",
    "autocast_watch",
    "backward",
    "check",
    "combine",
    "conflicts",
    "errors",
    "explain",
    "explain_errors",
    "grad",
    "graph",
    "hessian",
    "install",
    "jacobian",
    "jacobian_of",
    "precision",
    "prepare",
    "record",
    "seed",
    "watch_graphs",
]
__version__ = "0.1.0"
