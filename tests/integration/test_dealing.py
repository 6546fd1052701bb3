"""Muon whose matrices are dealt over gloo processes: bit-identical on all of them, and equal to one process alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.forked import run_forked

# Each process prints the digests and the largest differences from a Muon that works alone, of whole and of sharded
# matrices, after four steps on fixed gradients: 5, 1 (fewer than processes), 3 and 4 of a shape, 7 and 2 rows (some
# processes have fewer rows than others, or none). One is orthogonalised in three parts.
DEALT = """
import hashlib, json, os, sys, torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from bertpre.training.dealing import machine_group
from bertpre.training.optimizer import Muon

SHAPES = [(8, 24)] * 5 + [(24, 8)] + [(7, 16)] * 3 + [(2, 12)] * 4

def train(place, **options):
    generator = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(place(torch.randn(shape, generator=generator))) for shape in SHAPES]
    groups = [{"params": weights[:5] + weights[6:]}, {"params": weights[5:6], "parts": 3}]
    muon = Muon(groups, lr=0.02, weight_decay=0.1, dtype=DTYPE, **options)
    for _ in range(4):
        for number, weight in enumerate(weights):
            gradient = place(torch.randn(weight.shape, generator=generator))
            weight.grad = None if number == 4 else gradient  # one is not used
        muon.step()
    full = [each.full_tensor() if isinstance(each, DTensor) else each for each in (each.detach() for each in weights)]
    return full, muon

os.environ["GROUP_RANK"] = sys.argv[2].split(",")[int(os.environ["RANK"])]  # torchrun's number of the machine
distributed.init_process_group("gloo")
rank, size = distributed.get_rank(), distributed.get_world_size()
mesh = init_device_mesh("cpu", (size,))
group = machine_group()
said = {"group": group.size() if group else 1}
for dtype in ("float32", "bfloat16"):
    DTYPE = getattr(torch, dtype)
    alone, _ = train(lambda tensor: tensor)
    ways = {"whole": (lambda tensor: tensor, {"group": group}),
            "sharded": (lambda tensor: distribute_tensor(tensor, mesh, [Shard(0)], src_data_rank=None), {})}
    for name, (place, options) in ways.items():
        weights, muon = train(place, **options)
        said[f"{name} {dtype}"] = {
            "digest": hashlib.sha256(b"".join(each.numpy().tobytes() for each in weights)).hexdigest(),
            "difference": max(float((one - other).abs().max()) for one, other in zip(weights, alone)),
        }
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump(said, file)
distributed.destroy_process_group()
"""


def run_dealt(launchers: tuple[int, ...], folder: Path) -> list[dict[str, Any]]:
    """What each process of several launchers says."""
    machines = [machine for machine, count in enumerate(launchers) for _ in range(count)]
    done = run_forked(DEALT, folder, ",".join(map(str, machines)), ranks=len(machines))
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(len(machines))]


@pytest.mark.parametrize("launchers", [(3,), (1, 2)], ids=["three", "two machines"])
def test_processes_that_share_muons_work_hold_one_processs_weights(launchers: tuple[int, ...], tmp_path: Path) -> None:
    said = run_dealt(launchers, tmp_path)
    assert len(said) == sum(launchers)
    assert [each["group"] for each in said] == [count for count in launchers for _ in range(count)]
    for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 0.0)):
        for way in ("whole", "sharded"):
            results = [each[f"{way} {dtype}"] for each in said]
            assert len({result["digest"] for result in results}) == 1, (way, dtype)
            assert max(result["difference"] for result in results) <= tolerance, (way, dtype)
