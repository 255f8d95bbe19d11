"""PBA114: no_grad does not reach into threads."""

from __future__ import annotations

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.values import Fix
from pullback.language import say


class ThreadMode(Fault):
    """A thread was started inside ``no_grad()``, but recorded graphs all the same.

    Grad mode belongs to a thread. A new thread starts with recording on, wherever it is started from, so that a
    ``with torch.no_grad():`` around ``thread.start()`` or ``executor.submit()`` does not hold in it: it records graphs
    and keeps their tensors alive.

    Enter ``torch.no_grad()`` (or ``torch.inference_mode()``) in the function that the thread runs.
    ``torch.set_grad_enabled(False)`` in the main thread does not help either.
    """

    code = "PBA114"
    title = "A thread that was started under no_grad() recorded graphs: grad mode is not inherited."

    def at_end(self, audit: Audit) -> None:
        for each in audit.threads:
            if each.passes:
                continue
            audit.report(
                self.found(
                    say(
                        "Grad mode was off where the thread was started, but in it {count} operations were recorded.",
                        count=each.nodes,
                    ),
                    [each.spot.mark(say("started under no_grad()"))],
                    Fix(
                        say("Enter no_grad() in the function that the thread runs."),
                        "@torch.no_grad()\ndef work(): ...",
                    ),
                    useless=[say("no_grad() around start() or submit(): it holds in this thread only")],
                )
            )

    @staticmethod
    def bad():
        import threading

        import torch

        net, results = torch.nn.Linear(3, 1), []

        def work():
            results.append(net(torch.ones(2, 3)))

        with torch.inference_mode(False), torch.no_grad():
            thread = threading.Thread(target=work)
            thread.start()
        thread.join()

    @staticmethod
    def good():
        import threading

        import torch

        net, results = torch.nn.Linear(3, 1), []

        def work():
            with torch.no_grad():
                results.append(net(torch.ones(2, 3)))

        with torch.no_grad():
            thread = threading.Thread(target=work)
            thread.start()
        thread.join()
