"""Two processes of a distributed run: each says once what made it fail, with its rank."""

import json
import socket

import pytest
import torch.distributed

from tests.diagnose.commands import python, written

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def launched(folder, *arguments):
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    return python(folder, *launch, "-m", "pullback", "run", *arguments)


PROGRAM = """
    import sys
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    w = torch.ones(3, requires_grad=True)
    total = torch.ones(1)
    dist.all_reduce(total)
    loss = w * total
    dist.barrier()
    if sys.argv[1] == "fail":
        loss.backward()
    loss.sum().backward()
    sys.stdout.write(f"rank {dist.get_rank()} done\\n")
    dist.destroy_process_group()
"""


def test_each_rank_is_explained_once(tmp_path):
    written(tmp_path, train=PROGRAM)
    ended = launched(tmp_path, "--trace", "--json", "report.json", "train.py", "fail")
    assert ended.returncode == 1
    for rank in (0, 1):
        assert ended.stderr.count(f"error[PB101] (rank {rank}): ") == 1, ended.stderr
        report = json.loads((tmp_path / f"report.rank{rank}.json").read_text())
        assert [(each["code"], each["rank"]) for each in report["diagnoses"]] == [("PB101", rank)]
    assert ended.stderr.count("error[PB101]") == 2
    assert not (tmp_path / "report.json").exists()


def test_a_run_that_succeeds_is_silent(tmp_path):
    written(tmp_path, train=PROGRAM)
    ended = launched(tmp_path, "train.py", "succeed")
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["rank 0 done", "rank 1 done"]
    assert "pullback" not in ended.stderr
