"""Two runs on one machine or cluster do not share a queue or a socket: the second is refused with the reason."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path
from typing import IO

import psutil
import pytest
from ports import free_port

from memagent_lib.rl.run.ray_cluster import MACHINE_LOCK, claim_machine
from memagent_lib.rl.run.training_run import RunError
from memagent_lib.rl.run_folder import RunFolder
from memagent_lib.system import LOCAL, ClusterError, end_ray, require_answer, start_ray, started


def test_a_machines_gpus_belong_to_one_run_until_it_ends(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    claim = claim_machine(RunFolder(Path("/runs/one")))
    with pytest.raises(RunError, match=r"the run /runs/one trains on this machine .* cluster.address = \"auto\""):
        claim_machine(RunFolder(Path("/runs/two")))
    claim.close()
    claim_machine(RunFolder(Path("/runs/three"))).close()


def test_a_machines_lock_may_belong_to_another_user(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    claim_machine(RunFolder(Path("/runs/one"))).close()
    lock = tmp_path / MACHINE_LOCK
    assert stat.S_IMODE(lock.stat().st_mode) == 0o666, "every user may write the name of a run"
    opened = Path.open

    def of_another(path: Path, mode: str = "r", **options: str) -> IO[str]:
        """Open as somebody who may only read the lock. A mode is no test of it: root may write any file."""
        if path == lock and mode != "r":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, mode, **options)

    monkeypatch.setattr(Path, "open", of_another)
    claim = claim_machine(RunFolder(Path("/runs/two")))
    with pytest.raises(RunError, match="trains on this machine"):
        claim_machine(RunFolder(Path("/runs/three")))
    claim.close()


def test_a_cluster_that_does_not_answer_is_an_error_at_once(monkeypatch) -> None:
    away = f"127.0.0.1:{free_port()}"
    with pytest.raises(ClusterError, match=rf"no Ray cluster answers at {away} \(.*refused.* see that its head runs"):
        require_answer(away)
    monkeypatch.setenv("RAY_ADDRESS", away)
    with pytest.raises(ClusterError, match=f"no Ray cluster answers at {away}"):
        require_answer("auto")
    with pytest.raises(ClusterError, match="no Ray cluster answers at no-such-host:6379"):
        require_answer("no-such-host:6379")
    with pytest.raises(ClusterError, match="no Ray cluster answers at no-port"):
        require_answer("no-port")


def test_leaving_ray_removes_the_folder_of_its_own_session(tmp_path) -> None:
    pytest.importorskip("ray")
    own = tmp_path / "session_1"
    other = tmp_path / "session_2"
    for folder in (own, other):
        (folder / "logs").mkdir(parents=True)
    (tmp_path / "session_latest").symlink_to(own)
    end_ray(own)
    end_ray()  # of a cluster, or after a failure: its logs stay
    assert list(tmp_path.iterdir()) == [other] and (other / "logs").is_dir()


@pytest.mark.slow
def test_a_node_too_slow_to_start_is_ended_first(monkeypatch, capsys) -> None:
    pytest.importorskip("ray")
    from ray._private.services import get_node

    calls = []

    def late(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 1:
            raise Exception("The current node timed out during startup.")
        return get_node(*arguments)

    monkeypatch.setattr("ray._private.services.get_node", late)
    session = start_ray({"address": LOCAL, "num_cpus": 1, "include_dashboard": False})
    nodes = [process for process in psutil.Process().children(recursive=True) if process.name() == "raylet"]
    end_ray(session)
    assert len(nodes) == 1
    assert capsys.readouterr().out == "Ray's node did not start within its 30 seconds; trying again, 4 left\n"


@pytest.mark.slow
@pytest.mark.long
def test_a_cluster_carries_one_run(tmp_path) -> None:
    import ray

    from memagent_lib.rl.run import ray_cluster

    context = started(lambda: ray.init(num_cpus=2, include_dashboard=False, namespace="one"))
    address = context.address_info["address"]
    try:
        claim = ray_cluster.claim_cluster(address, RunFolder(Path("/runs/one")))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ray_cluster, "CLAIM_WAIT_S", 1.0)
            with pytest.raises(RunError, match="carries the run /runs/one, and two would share verl's queue"):
                ray_cluster.claim_cluster(address, RunFolder(Path("/runs/two")))
        ray.kill(claim)
        claim = ray_cluster.claim_cluster(address, RunFolder(Path("/runs/three")))  # Ray takes a moment to notice

        @ray.remote(num_cpus=0)
        class Foreign: ...

        ray.kill(claim)
        other = Foreign.options(name="TransferQueueController", namespace="transfer_queue").remote()
        with pytest.raises(RunError, match="carries a run of verl that was not started here"):
            ray_cluster.claim_cluster(address, RunFolder(Path("/runs/four")))
        with pytest.raises(RunError, match=r"/runs/four is not seen by .*; use a folder that all nodes share"):
            ray_cluster.require_folder(RunFolder(Path("/runs/four")))
        (tmp_path / "config.json").write_text("{}")
        ray_cluster.require_folder(RunFolder(tmp_path))
        del other
    finally:
        ray.shutdown()
