"""A run that ends for lack of memory says so in one line."""

from __future__ import annotations

from memagent_lib.rl.run.memory_end import shortened

SETTINGS = {"actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 2048}
LOWER = "lower verl.actor_rollout_ref.actor.ppo_max_token_len_per_gpu (now 2,048), or set "
LOWER += "verl.actor_rollout_ref.model.enable_gradient_checkpointing = true"

# As Ray 2.56 wrote it about a run of ours, without most of its sixty lines.
OF_RAY = """OutOfMemoryError: 2 worker(s) were killed due to the node running low on memory. \
Memory on the node (IP: 127.0.0.1, ID: f2a3a6b2) was 22.32GB used / 23.54GB limit (0.947939)
OOM kill reason: Memory usage 24025284608B exceeded threshold of 24012687360B (95.0% of 25276514304B limit)
Object store memory usage: [- objects spillable: 0
Selected to kill: (Actor(18715f61): task name=WorkerDict_0:0:WorkerDict.__init__, pid=14249, actual memory used=7.07GB)
Top 10 memory users: PID\tMEM(GB)\tCOMMAND
14249\t7.07\tray::WorkerDict.actor_rollout_update_actor
13961\t2.99\tray::RolloutServer
17870\t2.72\tpython somebody.py
13692\t0.67\tpython -m memagent_lib.rl.run.training_process /runs/prose 13691
13608\t0.50\tmemagent train
Refer to the documentation on how to address the out of memory issue.
"""


def test_an_end_by_ray_names_the_largest_processes_and_the_key():
    assert shortened(OF_RAY, SETTINGS) == (
        "out of memory: 22.32 of 23.54 GB of this machine were in use (update 7.1, rollout server 3.0, "
        f"process 17870, python somebody.py 2.7, trainer 0.7); end programs that are not of the run, or {LOWER}"
    )


def test_an_end_on_a_gpu_names_the_card_and_the_share_of_vllm():
    error = "OutOfMemoryError: CUDA out of memory. Tried to allocate 9.27 GiB. GPU 0 has a total capacity of 79.10 GiB "
    error += "of which 3.11 GiB is free. Process 4 has 75.98 GiB memory in use."
    share = "actor_rollout_ref.rollout.gpu_memory_utilization"
    what = "out of memory: 9.27 GiB more were needed on GPU 0, which has 79.10 GiB"
    assert shortened(error, SETTINGS | {share: 0.6}) == f"{what}; {LOWER}, or lower verl.{share} (now 0.6)"


def test_an_end_in_torchs_allocator_names_what_was_requested():
    error = "RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: "
    error += "you tried to allocate 7489126400 bytes. Error code 12 (Cannot allocate memory)"
    done = SETTINGS | {"actor_rollout_ref.model.enable_gradient_checkpointing": True}
    wanted = "out of memory: 7.5 GB more were needed at once; lower verl."
    assert shortened(error, done) == wanted + "actor_rollout_ref.actor.ppo_max_token_len_per_gpu (now 2,048)"


def test_any_other_error_is_unchanged():
    error = "RuntimeError: the loss is not a number"
    assert shortened(error, SETTINGS) == error
