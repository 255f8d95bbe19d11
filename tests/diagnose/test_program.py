"""A program under ``pullback run`` does what it does under Python, and says more when autograd fails."""

import json
import re
import shutil
import textwrap
import zipfile
from pathlib import Path

import pytest

from pullback.diagnose.program import Program
from pullback.errors import ValueMismatch
from tests.diagnose.commands import python, run, written

ENDS = """
    import atexit, os, pickle, signal, sys, time

    class Own:
        pass

    atexit.register(lambda: print("at exit"))
    print(__name__, __file__, __spec__, __package__, sys.argv, sys.path[0], sorted(vars()))
    print(sys.flags, sys.modules["__main__"].Own is Own, type(pickle.loads(pickle.dumps(Own()))) is Own)
    sys.stdout.flush()

    def fail():
        try:
            {}["one"]
        except KeyError as error:
            raise ValueError("two") from error

    how = sys.argv[1]
    if how == "status":
        sys.exit(7)
    if how == "text":
        raise SystemExit("good bye")
    if how == "list":
        sys.exit([1, 2])
    if how == "interrupt":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    if how == "error":
        fail()
    if how == "hook":
        sys.excepthook = lambda kind, error, trace: print("own hook", kind, error, trace.tb_lineno)
        fail()
    if how == "input":
        print(sys.stdin.read())
"""


@pytest.mark.parametrize("how", ["status", "text", "list", "interrupt", "error", "hook", "input", "--json"])
def test_a_program_ends_as_under_python(tmp_path, how):
    written(tmp_path, program=ENDS)
    plain = python(tmp_path, "program.py", how, "-x", "--", given="a line")
    watched = run(tmp_path, "program.py", how, "-x", "--", given="a line")
    assert watched.stdout == plain.stdout
    assert watched.stderr == plain.stderr
    assert watched.returncode == plain.returncode


def test_the_traceback_of_torch_is_the_one_without_a_recorder(tmp_path):
    written(
        tmp_path,
        program="""
            import torch

            def deep(w):
                y = w * 2
                y.backward()

            deep(torch.ones(3, requires_grad=True))
        """,
    )
    plain = python(tmp_path, "program.py")
    for options in ([], ["--trace"], ["--audit"]):
        watched = run(tmp_path, *options, "program.py")
        assert watched.returncode == plain.returncode == 1
        assert watched.stderr.startswith(plain.stderr)
        assert "error[PB101]" in watched.stderr[len(plain.stderr) :]


PROGRAM = """
import sys
from .other import NUMBER
print(NUMBER, __name__, __package__, __spec__.name, __file__, sys.argv, sys.path[0])
"""
FILES = {
    "pack/__init__.py": "print('the package', __name__)",
    "pack/other.py": "NUMBER = 3",
    "pack/__main__.py": PROGRAM,
    "pack/program.py": PROGRAM + "raise ValueError(NUMBER)",
    "folder/__main__.py": "import sys, other\nprint(__name__, __package__, __file__, sys.argv, sys.path[0])",
    "folder/other.py": "",
}


def without_runpy(text):
    return re.sub(r'  File "<frozen runpy>".*\n', "", text)


@pytest.mark.parametrize(
    "target", [["-m", "pack", "--json"], ["-m", "pack.program", "-m", "x"], ["folder", "x"], ["pack.zip"]]
)
def test_modules_folders_and_archives_run_as_under_python(tmp_path, target):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with zipfile.ZipFile(tmp_path / "pack.zip", "w") as archive:
        for each in (tmp_path / "folder").glob("*.py"):
            archive.write(each, each.name)
    plain = python(tmp_path, *target)
    watched = run(tmp_path, *target)
    assert watched.stdout == plain.stdout != ""
    assert watched.stderr == without_runpy(plain.stderr)
    assert watched.returncode == plain.returncode


def test_a_missing_part_of_a_package_is_said(tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    ended = run(tmp_path, "-m", "pack.none")
    assert (ended.returncode, ended.stderr) == (1, "pullback run: there is no program in pack.none\n")


def test_a_syntax_error_is_shown_as_python_shows_it(tmp_path):
    written(tmp_path, program="def f(:\n")
    plain, watched = python(tmp_path, "program.py"), run(tmp_path, "program.py")
    assert (watched.stderr, watched.returncode) == (plain.stderr, 1)


def test_children_and_workers_find_the_main_module(tmp_path):
    written(
        tmp_path,
        program="""
            import multiprocessing
            import torch

            class Numbers(torch.utils.data.Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return torch.ones(2) * index

            def twice(number):
                return 2 * number

            if __name__ == "__main__":
                for method in ("fork", "spawn"):
                    with multiprocessing.get_context(method).Pool(1) as pool:
                        print(pool.map(twice, [1, 2]))
                loader = torch.utils.data.DataLoader(
                    Numbers(), batch_size=4, num_workers=1, multiprocessing_context="spawn"
                )
                print(sum(batch.sum().item() for batch in loader))
        """,
    )
    ended = run(tmp_path, "--trace", "program.py")
    assert ended.stdout.splitlines() == ["[2, 4]", "[2, 4]", "56.0"], ended.stderr
    assert (ended.stderr, ended.returncode) == ("", 0)


def test_a_program_that_gives_up_after_an_error_is_explained(tmp_path):
    written(
        tmp_path,
        program="""
            import sys, torch
            try:
                torch.ones(3, requires_grad=True).exp().backward()
            except RuntimeError as error:
                print("failed:", error, file=sys.stderr)
                sys.exit(3)
        """,
    )
    ended = run(tmp_path, "--json", "report.json", "program.py")
    assert ended.returncode == 3
    assert ended.stderr.startswith("failed: grad can be implicitly created only for scalar outputs\nerror[PB101]: ")
    assert [each["code"] for each in json.loads((tmp_path / "report.json").read_text())["diagnoses"]] == ["PB101"]


CHAINS = {
    "an error that cannot be printed": """
        class Own(Exception):
            def __str__(self):
                raise ValueError

        try:
            fail()
        except RuntimeError as error:
            raise Own from error
    """,
    "a group": """
        import asyncio

        async def job():
            fail()

        async def main():
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(job())

        asyncio.run(main())
    """,
    "a hook that fails": """
        import sys
        sys.excepthook = lambda *error: error[3]
        fail()
    """,
}


@pytest.mark.parametrize("how", CHAINS)
def test_the_error_behind_what_ended_the_program_is_explained(tmp_path, how):
    start = "import torch\n\ndef fail():\n    torch.ones(3, requires_grad=True).exp().backward()\n\n"
    written(tmp_path, program=start + textwrap.dedent(CHAINS[how]))
    ended = run(tmp_path, "program.py")
    assert ended.returncode == 1
    assert ended.stderr.count("error[PB101]") == 1
    assert "program.py:4 in fail" in ended.stderr


def test_a_call_over_several_lines_is_read_whole(tmp_path):
    written(
        tmp_path,
        program="""
            import torch
            w = torch.ones(3, requires_grad=True)
            (
                w
                * 2
            ).backward(
                retain_graph=True,
            )
        """,
    )
    assert "= cause: w * 2 has shape (3,)" in run(tmp_path, "program.py").stderr


def test_an_error_in_a_thread_is_explained(tmp_path):
    written(
        tmp_path,
        program="""
            import threading, torch
            thread = threading.Thread(target=lambda: torch.ones(3, requires_grad=True).exp().backward())
            thread.start()
            thread.join()
        """,
    )
    ended = run(tmp_path, "--json", "report.json", "program.py")
    assert ended.returncode == 0
    assert ended.stderr.count("error[PB101]") == 1
    assert len(json.loads((tmp_path / "report.json").read_text())["diagnoses"]) == 1


def test_a_fault_ten_calls_deep_in_a_package_is_found_where_it_was_made(tmp_path):
    shutil.copytree(Path(__file__).parent / "project", tmp_path / "project")
    ended = run(tmp_path, "--trace", "--json", "report.json", "-m", "project.train", "--layers", "3")
    assert ended.returncode == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert not report["trouble"]
    (diagnosis,) = report["diagnoses"]
    lines = {(Path(line["file"]).name, line["text"]) for line in diagnosis["lines"]}
    assert ("train.py", "loss.backward()") in lines
    assert ("weights.py", "weights *= mask[:, None, :]") in lines
    assert "project/network/weights.py:18 in kept" in ended.stderr


def test_without_the_trace_the_diagnosis_says_what_the_trace_would_answer(tmp_path):
    shutil.copytree(Path(__file__).parent / "project", tmp_path / "project")
    ended = run(tmp_path, "--json", "report.json", "-m", "project.train")
    (diagnosis,) = json.loads((tmp_path / "report.json").read_text())["diagnoses"]
    assert diagnosis["wants"].endswith("?")
    said = " ".join(ended.stderr.split())
    assert f"= still open: {diagnosis['wants']} `pullback run --trace` answers this." in said


@pytest.mark.parametrize(
    ("target", "module", "what"),
    [
        ("none.py", False, "There is no such program."),
        (".", False, "A folder that has no __main__.py cannot be run."),
        ("bytes.py", False, "The file is no Python program."),
        ("no.such.module", True, "There is no such module."),
    ],
)
def test_what_cannot_be_run_is_said_before(tmp_path, monkeypatch, target, module, what):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bytes.py").write_bytes(b"a\0b")
    with pytest.raises(ValueMismatch, match=re.escape(what)):
        Program(target, module=module)


WARNS = """
    import sys, warnings, torch
    import torch.nn.functional as F

    def item(tensor):
        return float(tensor)

    x = torch.randn(3, requires_grad=True)
    h = x * 2
    if sys.argv[1] == "recorded":
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            item(h[0]), item(h[1]), h.grad, F.softmax(h)
        print([(each.filename, each.lineno) for each in caught])
    else:
        for index in range(2):
            item(h[index])
            float(h[index])
            h.grad
            F.softmax(h)
            torch.nn.L1Loss()(torch.ones(3), torch.ones(3, 1))
        print(sorted(key[2] for key in __warningregistry__ if key != "version"))
"""


@pytest.mark.parametrize(
    ("how", "filters"),
    [
        ("shown", []),
        ("recorded", []),
        ("an error", ["-W", "error::UserWarning:__main__"]),
        ("nothing", ["-W", "error", "-W", "ignore::UserWarning:__main__", "-W", "ignore::UserWarning:torch"]),
    ],
)
def test_warnings_are_those_of_the_same_lines(tmp_path, how, filters):
    written(tmp_path, warns=WARNS)
    plain = python(tmp_path, *filters, "warns.py", how)
    watched = python(tmp_path, *filters, "-m", "pullback", "run", "--trace", "warns.py", how)
    assert (watched.stdout, watched.stderr, watched.returncode) == (plain.stdout, plain.stderr, plain.returncode)
    assert plain.stdout or "UserWarning: " in plain.stderr
