"""JAX, and asdex on it, as peers: in this interpreter if JAX is here, else in one that PULLBACK_JAX_PYTHON names."""

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
    """JAX and asdex, in this process or in another one.

    Args:
        python: The interpreter that has them; None for this one.
    """

    def __init__(self, python: str | None) -> None:
        self._process: subprocess.Popen[str] | None = None
        self.versions: dict[str, str] = {}
        if python is None:
            from benchmarks.jax_problems import Server

            self._local = Server()
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
            start_new_session=True,  # Ctrl-C is for this process, which ends the other
        )

    @classmethod
    def find(cls) -> tuple[Peer | None, str]:
        """The peer, and what there is to say of it."""
        here = importlib.util.find_spec("jax") is not None
        python = os.environ.get(VARIABLE)
        if not here and not python:
            return None, f"JAX and asdex are missing: install them here, or let {VARIABLE} name a Python that has them"
        try:
            peer = cls(None if here else python)
            peer.versions = peer.ask("versions")
        except (PeerError, OSError, ImportError) as error:
            return None, f"JAX is missing: {error}"
        about = ", ".join(f"{name} {version}" for name, version in peer.versions.items())
        return peer, about + (", in this interpreter" if here else f", by {VARIABLE}")

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Let it do something, such as ``"dense.make"``.

        Raises:
            PeerError: It could not.
        """
        if self._process is None:
            try:
                return self._local.do(do, **arguments)
            except Exception as error:
                raise PeerError(f"{type(error).__name__}: {error}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps({"do": do, **arguments}), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerError(f"the interpreter of {VARIABLE} ended; has it JAX and SciPy?")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def seconds(self, do: str, way: str) -> float:
        """The seconds of one call there."""
        return float(self.ask(do, way=way)["seconds"])

    def close(self) -> None:
        """End the other process, if there is one."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
