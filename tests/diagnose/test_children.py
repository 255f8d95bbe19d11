"""The processes that a program starts explain their own failures, once, in whichever way they are started."""

import json

import pytest

from tests.diagnose.commands import python, run, written

PROGRAM = """
    import sys
    from concurrent.futures import ProcessPoolExecutor
    import torch
    import torch.multiprocessing as mp

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return fail(index)

    def fail(number):
        w = torch.ones(3, requires_grad=True)
        loss = w * 2
        loss.backward()

    def fork_and_spawn(number):
        child = mp.get_context("spawn").Process(target=fail, args=(number,))
        child.start()
        child.join()

    if __name__ == "__main__":
        how, method = sys.argv[1:3]
        context = mp.get_context(method)
        if how in {"process", "nested"}:
            child = context.Process(target=fail if how == "process" else fork_and_spawn, args=(1,))
            child.start()
            child.join()
            sys.exit(child.exitcode)
        if how == "start_processes":
            mp.start_processes(fail, nprocs=2, start_method=method)
        try:
            if how == "loader":
                list(torch.utils.data.DataLoader(Numbers(), num_workers=1, multiprocessing_context=context))
            if how == "pool":
                with context.Pool(1) as pool:
                    pool.map(fail, [1])
            if how == "executor":
                with ProcessPoolExecutor(1, mp_context=context) as executor:
                    executor.submit(fail, 1).result()
        except RuntimeError:
            if "caught" not in sys.argv:
                raise
"""


def reported(folder):
    return json.loads((folder / "report.json").read_text())["diagnoses"]


@pytest.mark.parametrize(
    ("how", "level", "name"),
    [
        ("process fork", "trace", "ForkProcess-1"),
        ("process spawn", "trace", "SpawnProcess-1"),
        ("process forkserver", "default", "ForkServerProcess-1"),
        ("nested fork", "default", "SpawnProcess-1:1"),
        ("loader spawn", "trace", "SpawnProcess-1"),
        ("pool spawn", "trace", "SpawnPoolWorker-1"),
        ("executor fork", "default", "ForkProcess-1"),
    ],
)
def test_a_failure_in_a_child_is_explained_once(tmp_path, how, level, name):
    written(tmp_path, program=PROGRAM)
    ended = run(tmp_path, "--level", level, "--json", "report.json", "program.py", *how.split())
    assert ended.returncode == (0 if how.startswith("nested") else 1)
    assert ended.stderr.count("error[PB101]") == 1, ended.stderr
    assert f"error[PB101] (process {name}): " in ended.stderr
    assert ended.stderr.index("RuntimeError: ") < ended.stderr.index("error[PB101]")
    assert "/pullback/" not in ended.stderr
    (diagnosis,) = reported(tmp_path)
    assert diagnosis["process"] == name
    assert [line["text"] for line in diagnosis["lines"]] == ["loss.backward()", "loss = w * 2"]


def test_the_processes_of_one_script_are_explained_and_their_parent_adds_nothing(tmp_path):
    written(tmp_path, program=PROGRAM)
    ended = run(tmp_path, "--trace", "--json", "report.json", "program.py", "start_processes", "spawn")
    assert ended.returncode == 1
    found = reported(tmp_path)
    assert {each["process"] for each in found} <= {"SpawnProcess-1", "SpawnProcess-2"}
    assert ended.stderr.count("error[PB101]") == len(found) >= 1  # the other may have been ended before
    assert ended.stderr.rstrip().endswith("RuntimeError: grad can be implicitly created only for scalar outputs")
    assert "/pullback/" not in ended.stderr


def test_an_error_of_a_worker_that_the_program_catches_is_not_told(tmp_path):
    written(tmp_path, program=PROGRAM)
    ended = run(tmp_path, "--json", "report.json", "program.py", "pool", "spawn", "caught")
    assert (ended.returncode, ended.stderr, reported(tmp_path)) == (0, "", [])


def test_children_end_as_under_python_and_import_nothing_more(tmp_path):
    written(
        tmp_path,
        program="""
            import multiprocessing, sys, time

            def leave(number):
                sys.exit(number)

            def end(number):
                time.sleep(60)

            def look(number):
                print(sorted({"pullback", "torch"} & set(sys.modules)))

            if __name__ == "__main__":
                for target in (leave, end, look):
                    child = multiprocessing.get_context("spawn").Process(target=target, args=(3,))
                    child.start()
                    if target is end:
                        child.terminate()
                    child.join()
                    print(child.exitcode, flush=True)
        """,
    )
    plain, watched = python(tmp_path, "program.py"), run(tmp_path, "program.py")
    assert watched.stdout.splitlines() == plain.stdout.splitlines() == ["3", "-15", "[]", "0"]
    assert (watched.stderr, watched.returncode) == (plain.stderr, plain.returncode)


def test_errors_that_end_nothing_are_explained(tmp_path):
    written(
        tmp_path,
        program="""
            import atexit, threading, time, torch, weakref

            def fail():
                torch.ones(3, requires_grad=True).exp().backward()

            class Own:
                def __del__(self):
                    fail()

            def late():
                time.sleep(0.5)
                fail()

            Own()
            atexit.register(fail)
            kept = threading.Event()
            weakref.finalize(kept, fail)
            threading.Thread(target=late).start()
        """,
    )
    plain, watched = python(tmp_path, "program.py"), run(tmp_path, "--json", "report.json", "program.py")
    assert watched.returncode == plain.returncode == 0
    assert watched.stderr.count("error[PB101]") == plain.stderr.count("RuntimeError: ") == 4
    assert len(reported(tmp_path)) == 4
    assert "/pullback/" not in watched.stderr
