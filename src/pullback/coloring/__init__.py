"""Which columns or rows of a sparse Jacobian share a pass, and where its nonzeros then stand in the answers.

One file is one idea:

- ``columns``: forward passes, or reverse passes (distance-2 coloring);
- ``symmetric``: passes of a Hessian (star and acyclic coloring);
- ``bidirectional``: passes on both sides (star bicoloring);
- ``recover``, ``substitute``: the nonzeros from the answers;
- ``greedy``, ``orders``, ``modular``: how colors are found;
- ``compiled``, ``kernels``: the inner loops, with and without Numba;
- ``check``: slow and obvious judges.
"""

from pullback.coloring.bidirectional import bidirectional_bound, color_bidirectional
from pullback.coloring.columns import color_columns, color_rows, column_bound, row_bound
from pullback.coloring.recover import recover_bidirectional, recover_direct
from pullback.coloring.substitute import Substitution, substitution
from pullback.coloring.symmetric import color_symmetric

__all__ = [
    "Substitution",
    "bidirectional_bound",
    "color_bidirectional",
    "color_columns",
    "color_rows",
    "color_symmetric",
    "column_bound",
    "recover_bidirectional",
    "recover_direct",
    "row_bound",
    "substitution",
]
