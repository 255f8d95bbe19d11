"""The processes that a program starts by multiprocessing: each explains its own failure, where the evidence is.

A process that is forked has all that its parent had: its recorders go on. One that is spawned begins from nothing: the
data by which multiprocessing prepares it carry a call of this file, which waits there until torch is imported (a child
that does not import it pays nothing), and starts to watch at the level of the run. This file is run there by its path,
before anything of ours is imported, so at its head it imports nothing but the standard library.

A process that fails by itself prints its diagnosis below its traceback. An error that a worker hands back to its parent
(a pool, an executor, a DataLoader) may be caught there, so the worker prints nothing: it leaves its diagnosis in a
folder of the run, under the traceback's text, where the parent finds it if that error ends the program.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.util
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from pullback.diagnose.session import Session
    from pullback.diagnose.values import Diagnosis, Report

NAME = "pullback.diagnose.children"
# So many errors that a worker hands back are looked at: a program may live by them.
HANDED_BACK = 20
# What a child runs when it reads how it is to be prepared; whatever fails there must not be noticed.
_SEED = f"""
try:
    import importlib.util, sys
    spec = importlib.util.spec_from_file_location({NAME!r}, {{file!r}})
    module = sys.modules[{NAME!r}] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.spawned({{how!r}})
except Exception:
    pass
"""


class How(NamedTuple):
    """How children are watched; plain values, for they are sent as text.

    Attributes:
        level: What is recorded.
        folder: Where children leave what they have to say; made by the first that has.
        color: In colour or not; None for colour on a terminal.
        width: How wide the text is; None for that of the terminal.
        language: The language that was asked for; None for that of the environment.
    """

    level: str
    folder: str
    color: bool | None = None
    width: int | None = None
    language: str | None = None


class Left(NamedTuple):
    """What a child has left in the folder.

    Attributes:
        text: The traceback that was handed back to the parent; empty if the child printed all this itself.
        report: What it has to say.
    """

    text: str
    report: Report


class Held:
    """Holds back the signal by which a launcher ends the other processes when one has failed, until all is said."""

    def __init__(self) -> None:
        self._holds = False
        self._came = False

    def hold(self) -> None:
        """Hold it back from now on, unless the program has its own way with it."""
        here = threading.current_thread() is threading.main_thread()
        if here and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._note)
            self._holds = True

    def release(self) -> None:
        """Let it through, if it came."""
        if self._holds:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._holds = False
            if self._came:
                os.kill(os.getpid(), signal.SIGTERM)

    def _note(self, number: int, frame: object) -> None:
        self._came = True


class Children:
    """Has the children of this process watched, and theirs.

    Args:
        how: How.
        session: What watches this process, if anything does by now.
    """

    def __init__(self, how: How, session: Callable[[], Session | None]) -> None:
        self.how = how
        self._session = session
        self._child: _Child | None = None

    def start(self) -> None:
        """Have every child watched that is started from now on, in whichever way."""
        from multiprocessing import spawn, util  # noqa: PLC0415

        _watching[:] = [self]
        original = spawn.get_preparation_data

        @functools.wraps(original)
        def prepared(name: str) -> dict[str, Any]:
            return {**original(name), "pullback": _Seed(_SEED.format(file=__file__, how=tuple(self.how)))}

        spawn.get_preparation_data = prepared
        util.register_after_fork(self, Children._forked)

    def _forked(self) -> None:
        if self._child is None or not self._child.here:
            self._child = _Child(self.how, self._session(), fresh=False)
            self._child.watch_workers()
        self._child.await_end()

    def of_spawned(self, child: _Child) -> None:
        """This process is itself such a child."""
        self._child = child


_watching: list[Children] = []


class _Seed:
    """What runs a text in the process that reads it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self._text, {})


def spawned(how: Sequence[Any]) -> None:
    """This process was spawned by one that has its children watched."""
    child = _Child(How(*how), None, fresh=True)
    children = Children(child.how, lambda: child.session)
    children.start()
    children.of_spawned(child)
    child.await_end()
    if "torch" in sys.modules:  # a fork server may have loaded it
        child.begin()
    else:
        sys.meta_path.insert(0, _Torch(child.begin))


class _Torch(importlib.abc.MetaPathFinder):
    """Does something once torch is imported."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader = spec.loader
            run = loader.exec_module

            def run_then(module: ModuleType) -> None:
                loader.exec_module = run  # type: ignore[method-assign]
                run(module)
                self._then()

            loader.exec_module = run_then  # type: ignore[method-assign]
        return spec


class _Child:
    """This process, as a child.

    Args:
        how: How it is watched.
        session: What watches it already.
        fresh: Whether it began from nothing.

    Attributes:
        how: How it is watched.
        session: What watches it, or will.
        fresh: Whether it began from nothing.
    """

    def __init__(self, how: How, session: Session | None, *, fresh: bool) -> None:
        self.how = how
        self.session = session
        self.fresh = fresh
        self._process = os.getpid()
        self._known = len(session.audit.findings) if session is not None and session.audit is not None else 0
        # what its parent was handling when it forked
        self._outer = sys.exc_info()[1]
        self._error: BaseException | None = None
        self._held = Held()
        self._over = False
        self._handed_back = 0
        self._texts: set[str] = set()

    @property
    def here(self) -> bool:
        """Whether it is this process, and not one from which this was forked."""
        return os.getpid() == self._process

    def begin(self) -> None:
        """Begin to watch, now that torch is there: at once, or, if only backward passes are noted, at the first."""
        with contextlib.suppress(Exception):
            self.watch_workers()
            if self.how.level == "default":
                self._begin_at_the_first_pass()
            else:
                self._begin()

    def _begin(self) -> Session:
        if self.session is None:
            from pullback.diagnose.session import Session  # noqa: PLC0415
            from pullback.diagnose.uncaught import Uncaught  # noqa: PLC0415
            from pullback.language import speak  # noqa: PLC0415

            speak(self.how.language)
            self.session = Session(self.how.level)  # type: ignore[arg-type]
            self.session.start()
            Uncaught(lambda: self.session, self._tell).start()
        return self.session

    def _begin_at_the_first_pass(self) -> None:
        import torch  # noqa: PLC0415

        original = torch.autograd.graph._engine_run_backward

        def first(*args: Any, **kwargs: Any) -> Any:
            for module in (torch.autograd, torch.autograd.graph):
                if module._engine_run_backward is first:
                    module._engine_run_backward = original  # type: ignore[attr-defined]
            with contextlib.suppress(Exception):
                self._begin()
            return torch.autograd.graph._engine_run_backward(*args, **kwargs)

        torch.autograd.graph._engine_run_backward = torch.autograd._engine_run_backward = first  # type: ignore[attr-defined]

    def await_end(self) -> None:
        """Be told of the end of the process.

        Multiprocessing runs its finalizers while the error is on its way; then it prints the traceback; then it ends
        the threads. So none of our frames is in the traceback, and the diagnosis follows it.
        """
        from multiprocessing import util  # noqa: PLC0415

        util.Finalize(None, self._ending, exitpriority=1000)
        if (register := getattr(threading, "_register_atexit", None)) is not None:
            register(self._end)

    def _ending(self) -> None:
        error = sys.exc_info()[1]
        if self.here and error is not None and error is not self._outer and self._error is None:
            self._error = error
            if "torch" in sys.modules:
                self._held.hold()
                _clean(error)

    def _end(self) -> None:
        if not self.here or self._over or "torch" not in sys.modules:
            return
        self._over = True
        with contextlib.suppress(Exception):
            self._tell_all()
        self._error = None
        self._held.release()

    def _tell_all(self) -> None:
        from pullback.diagnose.program import failure  # noqa: PLC0415

        error = failure(self._error)
        if error is self._outer:
            error = None
        if error is None and (self.session is None or self.session.audit is None):
            return
        session = self._begin()
        session.stop()
        self._tell(self._report(session, error), error)

    def _report(self, session: Session, error: BaseException | None) -> Report:
        from multiprocessing import process  # noqa: PLC0415

        from pullback.diagnose.values import Report  # noqa: PLC0415

        if self.fresh and not process.current_process().daemon:
            return session.report(error, vars(sys.modules["__main__"]))
        # what was found until the fork is the parent's, and only it can say what never came to happen
        findings = session.audit.findings[self._known :] if session.audit is not None else ()
        return Report(session.diagnoses(error) if error is not None else (), tuple(findings), level=session.level)

    def _tell(self, report: Report, error: BaseException | None = None) -> None:
        from pullback.diagnose.reports.show import tell  # noqa: PLC0415

        report = report.of_process(rank(), _name())
        tell(report, error, color=self.how.color, width=self.how.width)
        if report:
            leave(self.how.folder, Left("", report))

    def watch_workers(self) -> None:
        """Explain the errors that this process hands back to its parent, if it is a worker."""
        import concurrent.futures.process as futures  # noqa: PLC0415
        import multiprocessing.pool as pools  # noqa: PLC0415

        import torch._utils  # noqa: PLC0415

        # the package has a function of the same name
        spawning: Any = importlib.import_module("torch.multiprocessing.spawn")
        spawning.pickle = _Dumping(spawning.pickle)
        for kind in (pools.ExceptionWithTraceback, futures._ExceptionWithTraceback):  # type: ignore[attr-defined]
            _wrap_init(kind, lambda original: lambda wrapper, error, trace: self._hands_back(original, wrapper, error))
        _wrap_init(
            torch._utils.ExceptionWrapper,
            lambda original: (
                lambda wrapper, exc_info=None, where="in background": self._hands_over(
                    original, wrapper, exc_info or sys.exc_info(), where
                )
            ),
        )

    def _hands_back(self, original: Callable[..., None], wrapper: Any, error: BaseException) -> None:
        report = self._handed(error)
        original(wrapper, error, error.__traceback__)
        self._leave(report, str(wrapper.tb))

    def _hands_over(self, original: Callable[..., None], wrapper: Any, error: Any, where: str) -> None:
        report = self._handed(error[1])
        original(wrapper, (error[0], error[1], error[1].__traceback__), where)
        self._leave(report, str(wrapper.exc_msg))

    def _handed(self, error: BaseException) -> Report | None:
        """What there is to say of an error that the parent is going to be told of."""
        if not self.here or self._handed_back >= HANDED_BACK:
            return None
        self._handed_back += 1
        with contextlib.suppress(Exception):
            from pullback.diagnose.values import Report  # noqa: PLC0415

            _clean(error)
            return Report(self._begin().diagnoses(error), level=self.how.level).of_process(rank(), _name())
        return None

    def _leave(self, report: Report | None, text: str) -> None:
        """Leave it, with the text that the parent is told."""
        if report and text not in self._texts:
            self._texts.add(text)
            with contextlib.suppress(Exception):
                leave(self.how.folder, Left(text.strip('"\n'), report))


class _Dumping:
    """The module pickle, for torch's spawn, which hands the text of a traceback to the parent: without our frames."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def dump(self, thing: Any, file: Any) -> None:
        """Pickle it."""
        error = sys.exc_info()[1]
        if isinstance(thing, str) and error is not None and thing == traceback.format_exc():
            with contextlib.suppress(Exception):
                _clean(error)
                thing = traceback.format_exc()
        self._module.dump(thing, file)


def _wrap_init(kind: type, made: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
    """Replace how things of a kind are made."""
    kind.__init__ = functools.wraps(kind.__init__)(made(kind.__init__))  # type: ignore[misc]


def _clean(error: BaseException) -> None:
    from pullback.diagnose.traces import clean  # noqa: PLC0415

    clean(error)


def _name() -> str:
    from multiprocessing import process  # noqa: PLC0415

    return str(process.current_process().name)


def rank() -> int | None:
    """The rank of this process in a distributed run, if it is part of one."""
    said = os.environ.get("RANK", "")
    if said.isdecimal():
        return int(said)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return None


def leave(folder: str, left: Left) -> None:
    """Leave something in the folder of the run."""
    place = Path(folder)
    place.mkdir(mode=0o700, exist_ok=True)
    number = sum(1 for _ in place.glob(f"{os.getpid()}-*"))
    file = place / f"{os.getpid()}-{number}"
    file.with_suffix(".new").write_bytes(pickle.dumps(left))
    file.with_suffix(".new").rename(file.with_suffix(".left"))


def all_left(folder: str) -> Iterator[Left]:
    """What the children have left until now."""
    place = Path(folder)
    for file in sorted(place.glob("*.left")) if place.is_dir() else []:
        with contextlib.suppress(Exception):
            yield pickle.loads(file.read_bytes())  # written by this run, in a folder of its own


def handed_back(text: str) -> tuple[Diagnosis, ...]:
    """What a worker has left about an error, by the text that came with it."""
    for watching in _watching:
        for left in all_left(watching.how.folder):
            if left.text and left.text in text:
                return left.report.diagnoses
    return ()


def text_of(error: BaseException) -> str:
    """The traceback of another process that an error brings with it; empty if it happened here."""
    if type(error.__cause__).__name__ in {"RemoteTraceback", "_RemoteTraceback"}:
        return str(error.__cause__)
    brought = type(error).__name__ == "ProcessRaisedException"
    try:
        said = str(error)
    except Exception:  # an error of the program's own may fail at that
        return ""
    return said if brought or (said.startswith("Caught ") and "\nOriginal Traceback" in said) else ""
