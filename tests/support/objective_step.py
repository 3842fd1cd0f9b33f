"""One rank of an update through verl's own worker and each real engine, on rows made by ``tests/rl/test_objective.py``.

``python objective_step.py FOLDER`` runs once per rank, with torch.distributed's variables set. It reads ``case.json``,
``rows.pt`` and the recipe's policy. It writes ``rank_R.pt``, which has for each engine the rows of each mini-batch,
losses, metrics, the new weights, how many tokens went through the model, and at how many positions logits were
computed.
"""

import json
import os
import sys
from pathlib import Path

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine_workers import ActorRolloutRefWorker

from memagent_lib.rl import Recipe, RunFolder
from memagent_lib.rl.verl.verl_settings import compose, verl_settings

NESTED = ("input_ids", "position_ids", "loss_mask", "response_mask", "prompts", "responses", "old_log_probs")
NESTED += ("ref_log_prob", "advantages")


def allow_double() -> None:
    """Make verl accept double precision, which a proof to 1e-5 needs."""
    known = PrecisionType.to_dtype
    PrecisionType.to_dtype = staticmethod(lambda name: torch.float64 if name == "float64" else known(name))


def worker_for(case: dict, folder: Path, packed: bool) -> ActorRolloutRefWorker:
    actor = "actor_rollout_ref.actor"
    own = {
        f"{actor}.fsdp_config.model_dtype": "float64",
        f"+{actor}.fsdp_config.mixed_precision": {"param_dtype": "float64", "reduce_dtype": "float64"},
        f"{actor}.optim.optimizer": "SGD",
        f"{actor}.optim.clip_grad": case["clip_grad"],
        f"{actor}.optim.total_training_steps": 1,
        f"{actor}.ppo_max_token_len_per_gpu": case["micro_batch_tokens"],
        "actor_rollout_ref.model.use_remove_padding": packed,
    }
    recipe = Recipe.from_tables(case["recipe"])
    config = compose(verl_settings(recipe, RunFolder(folder), "cpu") | own)
    worker = ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
    worker.init_model()
    return worker


def batch_of(rows: list[dict]) -> TensorDict:
    fields = {name: torch.nested.as_nested_tensor([row[name] for row in rows], layout=torch.jagged) for name in NESTED}
    fields["number"] = torch.tensor([row["number"] for row in rows])
    return TensorDict(fields, batch_size=len(rows))


def update(case: dict, folder: Path, rows: list[dict], packed: bool) -> dict:
    """Return one rank's record of an update with the engine that ``VERL_ENGINE_DEVICE`` names."""
    worker = worker_for(case, folder, packed)
    rank, share = int(os.environ["RANK"]), len(rows) // int(os.environ["WORLD_SIZE"])
    batch = batch_of(rows[rank * share : (rank + 1) * share])
    tu.assign_non_tensor(batch, **case["extra_info"])
    seen: list[list[int]] = []
    losses: list[float] = []
    logits: list[int] = []
    tokens: list[int] = []
    train_batch = worker.actor.train_batch
    engine = worker.actor.engine
    engine.module.lm_head.register_forward_hook(lambda *call: logits.append(call[2].shape[:-1].numel()))
    engine.module.model.embed_tokens.register_forward_hook(lambda *call: tokens.append(call[1][0].numel()))

    def recorded(data: TensorDict) -> TensorDict:
        seen.append(data["number"].tolist())
        output = train_batch(data)
        losses.append(tu.get(output, "metrics")["loss"])
        return output

    worker.actor.train_batch = recorded
    metrics = tu.get(worker.update_actor(batch), "metrics")
    weights = {name: value.full_tensor() for name, value in engine.module.state_dict().items()}
    account = {"engine": type(engine).__name__, "rows": seen, "losses": losses, "metrics": metrics}
    return account | {"weights": weights, "logits": sum(logits), "tokens": sum(tokens)}


def main(folder: Path) -> None:
    allow_double()
    case, rows, found = json.loads((folder / "case.json").read_text()), torch.load(folder / "rows.pt"), {}
    # Ours are registered for the device cpu and for NVIDIA's cuda, verl's own for cuda; here all run on the CPU.
    engines = {"ours": ("cpu", "", False), "replies": ("cuda", "nvidia", True), "trees": ("cuda", "nvidia", False)}
    engines |= {"unpacked": ("cuda", "", False), "packed": ("cuda", "", True)}
    for name, (device, vendor, packed) in engines.items():
        os.environ |= {"VERL_ENGINE_DEVICE": device, "VERL_ENGINE_VENDOR": vendor or "another"}
        found[name] = update(case, folder, rows, packed)
    torch.save(found, folder / f"rank_{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
