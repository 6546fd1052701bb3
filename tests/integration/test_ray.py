"""`prepare.engine=ray`: the same bytes from a cluster of two nodes, one of which dies halfway."""

import threading
import time
from pathlib import Path

import pytest

import bertpre.commands.prepare
from bertpre.errors import UserError
from bertpre.recipe import load_recipe
from tests.helpers import tree_hash


def test_without_ray_the_extra_is_named(tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertpre.commands.prepare.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'bertpre\[ray\]'"):
        bertpre.commands.prepare.prepare(load_recipe(str(tiny_recipe), ["prepare.engine=ray"]))


@pytest.mark.slow
def test_a_cluster_that_loses_a_node_makes_the_same_bytes(
    tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray.cluster_utils import Cluster

    monkeypatch.chdir(tmp_path)

    def prepare(name: str, engine: str) -> dict[str, str]:
        settings = [f"output_dir={name}", f"prepare.engine={engine}", "prepare.workers=1", "corpus.limit=400"]
        bertpre.commands.prepare.prepare(load_recipe(str(tiny_recipe), settings), part_characters=4000)
        return tree_hash(tmp_path / name / "data") | tree_hash(tmp_path / name / "tokenizer")

    def kill_halfway() -> None:
        while len(list(tmp_path.glob("cluster/data.partial/*.clean.json"))) < 20:
            time.sleep(0.01)
        cluster.remove_node(second, allow_graceful=False)
        killed.set()

    killed = threading.Event()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        assert len(ray.nodes()) == 2
        threading.Thread(target=kill_halfway, daemon=True).start()
        on_cluster = prepare("cluster", "ray")
        assert killed.is_set()
        deadline = time.monotonic() + 60  # the cluster takes seconds to notice
        while sum(node["Alive"] for node in ray.nodes()) > 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert sum(node["Alive"] for node in ray.nodes()) == 1
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert on_cluster == prepare("here", "local")
