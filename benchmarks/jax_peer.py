"""asdex as a peer: in this interpreter if it is installed here, else in the one that PULLBACK_JAX_PYTHON names."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any

VARIABLE = "PULLBACK_JAX_PYTHON"


class PeerError(RuntimeError):
    """The peer could not do it."""


class Peer:
    """asdex, in this process or in another one.

    Args:
        python: The interpreter that has it; None for this one.
    """

    def __init__(self, python: str | None) -> None:
        self._process: subprocess.Popen[str] | None = None
        if python is None:
            from benchmarks.jax_problems import Asdex

            self._local = Asdex()
            return
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "JAX", "XLA"))}
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.jax_problems"],
            cwd=Path(__file__).parents[1],
            env=environment | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    @classmethod
    def find(cls) -> tuple[Peer | None, str]:
        """The peer, and what there is to say of it."""
        here = all(importlib.util.find_spec(name) for name in ("jax", "asdex"))
        python = os.environ.get(VARIABLE)
        if not here and not python:
            return None, f"asdex is missing: install it here, or let {VARIABLE} name an interpreter that has it"
        try:
            peer = cls(None if here else python)
            return peer, peer.ask("about")["text"] + (", in this interpreter" if here else f", by {VARIABLE}")
        except (PeerError, OSError, ImportError) as error:
            return None, f"asdex is missing: {error}"

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Let it do something.

        Raises:
            PeerError: It could not.
        """
        if self._process is None:
            answer: dict[str, Any] = getattr(self._local, do)(**arguments)
            return answer
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps({"do": do, **arguments}), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerError(f"the interpreter of {VARIABLE} ended; has it asdex, JAX and SciPy?")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def seconds(self, way: str) -> float:
        """The seconds of one call there."""
        return float(self.ask("time", way=way)["seconds"])

    def close(self) -> None:
        """End the other process, if there is one."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(timeout=60)
