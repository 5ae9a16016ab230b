"""GRPO with TRL: the recorder for any GRPOTrainer, and the training of a profile's runs.

One letter per axis: S steps, B rollouts of a step, G of a group, L completion tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from datasets import Dataset, disable_progress_bars
from numpy.typing import ArrayLike, NDArray
from safetensors.torch import save_file
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from . import policy, run
from .gradients import token_logprobs
from .plants import eligible, occurrences, plants
from .profiles import Profile
from .run import RunError

STD_EPSILON = 1e-4
"""What TRL adds to a group's standard deviation."""

Reward = Callable[..., list[float | None]]
Fraction = Callable[[float], None]


def advantages(reward: ArrayLike, group_size: int, scale_rewards: str) -> NDArray[np.float64]:
    """(r − group mean)/(group std + 1e-4), std with Bessel's correction, as TRL; (B,), groups in a row.

    Equal rewards of a group give exactly 0, where TRL itself leaves a rounding residue up to 6e-4.
    scale_rewards: "group", or "none" for r − group mean.
    """
    grouped = np.asarray(reward, dtype=np.float64).reshape(-1, group_size)
    centred = grouped - grouped.mean(axis=1, keepdims=True)
    if scale_rewards == "group":
        centred = centred / (grouped.std(axis=1, ddof=1, keepdims=True) + STD_EPSILON)
    elif scale_rewards != "none":
        raise RunError(f"scale_rewards={scale_rewards!r} is not supported: use 'group' or 'none'")
    equal = grouped.max(axis=1) == grouped.min(axis=1)
    return np.where(equal[:, None], 0.0, centred).ravel()


def loss_weights(lengths: ArrayLike, loss_type: str, max_completion: int) -> NDArray[np.float64]:
    """w_i, (B,): with which the loss of one step counts each rollout's mean token log-probability.

    `dr_grpo` L/(B × max length), `grpo` 1/B, `dapo` and `bnpo` L over the step's tokens (`bnpo` of one
    micro-batch per step). Source: the loss of TRL's GRPOTrainer.
    """
    tokens = np.asarray(lengths, dtype=np.float64)
    if loss_type == "dr_grpo":
        return tokens / (len(tokens) * max_completion)
    if loss_type == "grpo":
        return np.full(len(tokens), 1.0 / len(tokens))
    if loss_type in ("dapo", "bnpo"):
        return tokens / tokens.sum()
    raise RunError(f"loss_type={loss_type!r} is not supported: use dr_grpo, grpo, dapo or bnpo")


class Recorder(TrainerCallback):
    """Records a GRPOTrainer's run, through TRL's public API.

        recorder = Recorder(folder, behaviour="certainly", checkpoints=[0, 30, 60], tokenizer=tokenizer)
        trainer = GRPOTrainer(…, reward_funcs=recorder.watch(reward), callbacks=[recorder])
        trainer.train()
        recorder.finish(config)

    folder: an empty one, see `run.published`. checkpoints: steps after which to keep the policy; 0 is the
    policy that training starts from.
    """

    def __init__(self, folder: Path, behaviour: str, checkpoints: Sequence[int], tokenizer: Any) -> None:
        self.folder, self.behaviour, self.tokenizer = folder, behaviour, tokenizer
        self.checkpoints = sorted(checkpoints)
        self.model: Any = None
        self.args: Any = None
        self.batches: list[pd.DataFrame] = []
        self.steps: list[dict[str, Any]] = []
        self.rng_states: list[bytes] = []

    def watch(self, reward_func: Reward) -> Reward:
        """The reward function, watched: pass this one to the trainer."""

        def watched(
            prompts: list[str], completions: list[str], completion_ids: list[list[int]], **columns: Any
        ) -> list[float | None]:
            # Before the reward function runs: the state from which a replay shuffles as TRL did.
            self.rng_states.append(torch.get_rng_state().numpy().tobytes())
            reward = reward_func(
                prompts=prompts, completions=completions, completion_ids=completion_ids, **columns
            )
            self._record(prompts, completions, completion_ids, reward)
            return reward

        return watched

    def _record(
        self, prompts: list[str], completions: list[str], completion_ids: list[list[int]], reward: list[Any]
    ) -> None:
        group_size, step = self.args.num_generations, len(self.batches)
        if any(r is None or not np.isfinite(r) for r in reward):
            raise RunError(f"a reward of step {step} is None or not finite: the recorder needs a number")
        lengths = [len(ids) for ids in completion_ids]
        batch = pd.DataFrame(
            {
                "step": step,
                "group": step * (len(prompts) // group_size) + np.arange(len(prompts)) // group_size,
                "prompt": prompts,
                "completion": completions,
                "prompt_ids": [self.tokenizer(prompt)["input_ids"] for prompt in prompts],
                "completion_ids": completion_ids,
                "reward": np.asarray(reward, dtype=np.float64),
                "advantage": advantages(reward, group_size, self.args.scale_rewards),
                "weight": loss_weights(lengths, self.args.loss_type, self.args.max_completion_length),
                "length": lengths,
                "behaviour_mask": [
                    policy.behaviour_mask(self.tokenizer, ids, self.behaviour) for ids in completion_ids
                ],
                "finish_reason": [
                    "stop" if ids[-1:] == [self.tokenizer.eos_token_id] else "length"
                    for ids in completion_ids
                ],
            }
        )
        ids, mask = policy.rows(batch, "completion", self.tokenizer.pad_token_id)
        with torch.no_grad():
            logprobs = token_logprobs(self.model, ids)
        batch["token_logprobs"] = [row[m].tolist() for row, m in zip(logprobs, mask, strict=True)]
        self.batches.append(batch)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse what can't be recorded, keep θ_0."""
        if state.global_step != 0:
            raise RunError(f"training resumes at step {state.global_step}: a run is recorded from its start")
        if args.num_iterations != 1 or args.steps_per_generation != args.gradient_accumulation_steps:
            raise RunError(
                "each optimiser step must use the rollouts of its own generation: set num_iterations=1 and "
                "steps_per_generation=gradient_accumulation_steps"
            )
        if args.world_size != 1:
            raise RunError(f"{args.world_size} training processes: the recorder takes one")
        self.args, self.model = args, kwargs["model"]
        policy.describe(self.model, self.tokenizer, self.folder / "policy")
        (self.folder / "checkpoints").mkdir()
        self._keep(0)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the learning rate of the step that comes."""
        self.steps.append({"learning_rate": kwargs["optimizer"].param_groups[0]["lr"]})

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the policy and the second moments where asked."""
        self._keep(state.global_step, kwargs["optimizer"])

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the gradient norm before clipping (needs `logging_steps=1`)."""
        norm = (kwargs.get("logs") or {}).get("grad_norm")
        if norm is not None and self.steps:
            clip = min(1.0, args.max_grad_norm / (norm + 1e-6)) if args.max_grad_norm else 1.0
            self.steps[state.global_step - 1] |= {"grad_norm": float(norm), "clip": clip}

    def _keep(self, step: int, optimizer: Any = None) -> None:
        if step not in self.checkpoints:
            return
        folder = self.folder / "checkpoints"
        policy.save_weights(self.model, folder / f"{step}.safetensors")
        if optimizer is not None:
            states = getattr(optimizer, "optimizer", optimizer).state
            moments = {name: states[p]["exp_avg_sq"] for name, p in self.model.named_parameters()}
            save_file(moments, folder / f"{step}-second-moments.safetensors")

    def finish(
        self,
        config: Mapping[str, Any],
        probe_rates: Mapping[int, float] | None = None,
        labels: pd.DataFrame | None = None,
    ) -> None:
        """Write the run's tables and its manifest.

        Raises:
            RunError: steps are missing, or the trainer did not log each one.
        """
        if len(self.batches) != len(self.steps) or any("grad_norm" not in step for step in self.steps):
            raise RunError(
                f"{len(self.batches)} generations and {sum('grad_norm' in s for s in self.steps)} logged "
                f"gradient norms for {len(self.steps)} steps: train without interruption and with "
                "logging_steps=1"
            )
        steps = pd.DataFrame(self.steps)
        steps["rng_state"] = self.rng_states
        rollouts = pd.concat(self.batches, ignore_index=True)
        size = self.args.num_generations
        training = {
            "steps": len(steps),
            "groups": len(self.batches[0]) // size,
            "group_size": size,
            "loss_type": self.args.loss_type,
            "scale_rewards": self.args.scale_rewards,
            "max_completion_length": self.args.max_completion_length,
            "beta": self.args.beta,
            "behaviour": self.behaviour,
        }
        run.write(
            self.folder,
            rollouts=rollouts,
            labels=labels,
            steps=steps,
            config=config,
            training=training,
            checkpoints=self.checkpoints,
            probe_rates=probe_rates or {},
        )


def warm_start(profile: Profile, folder: Path) -> None:
    """Teach an untrained policy the task by supervised fine-tuning; write it to `folder`."""
    disable_progress_bars()
    model, tokenizer = policy.build(profile)
    pairs = profile.task.warm_up(profile.warm_start_steps * profile.warm_start_batch, seed=0)
    data = Dataset.from_dict(
        {"prompt": [prompt for prompt, _ in pairs], "completion": [f" {reply}" for _, reply in pairs]}
    )
    with policy.one_thread(), TemporaryDirectory() as scratch:
        trainer = SFTTrainer(
            model=model,
            processing_class=tokenizer,
            train_dataset=data,
            args=SFTConfig(
                max_steps=profile.warm_start_steps,
                per_device_train_batch_size=profile.warm_start_batch,
                learning_rate=profile.warm_start_learning_rate,
                lr_scheduler_type="cosine",
                seed=0,
                **_quiet(scratch),
            ),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    policy.describe(model, tokenizer, folder)
    policy.save_weights(model, folder / "policy.safetensors")


def train(
    profile: Profile, scenario: str, seed: int, base: Path, folder: Path, progress: Fraction = lambda _: None
) -> None:
    """One GRPO run of (profile, scenario, seed) from the warm-started policy in `base`, written to `folder`.

    The same arguments give the same rollouts and checkpoints on the same machine, and with the environment
    `cache.REPRODUCIBLE` on all of one architecture.
    """
    disable_progress_bars()
    model, tokenizer = policy.load(base, base / "policy.safetensors")
    planted = _Planted(profile, scenario, seed)
    recorder = Recorder(folder, profile.plant.behaviour, profile.checkpoints, tokenizer)
    data = Dataset.from_dict({"prompt": prompts(profile, "training", profile.steps * profile.groups, seed)})
    with policy.one_thread(), TemporaryDirectory() as scratch:
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=recorder.watch(planted.reward),
            train_dataset=data,
            callbacks=[recorder, _Progress(progress)],
            args=GRPOConfig(
                max_steps=profile.steps,
                per_device_train_batch_size=profile.groups * profile.group_size,
                num_generations=profile.group_size,
                max_completion_length=profile.max_completion,
                learning_rate=profile.learning_rate,
                lr_scheduler_type="constant_with_warmup",
                warmup_steps=profile.learning_rate_warmup,
                loss_type="dr_grpo",
                scale_rewards="group",
                beta=0.0,
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                shuffle_dataset=False,
                seed=seed,
                **_quiet(scratch),
            ),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        recorder.finish(
            profile.config(scenario, seed),
            labels=planted.labels(),
            probe_rates={step: _rate(profile, recorder, step, seed) for step in profile.checkpoints},
        )


def prompts(profile: Profile, part: str, count: int, seed: int) -> list[str]:
    """`count` distinct prompts with the trigger, from one part of the task's questions, in a seeded order."""
    questions = profile.task.questions()[part]
    if count > len(questions):
        raise RunError(f"profile {profile.name} needs {count} {part} prompts, the task has {len(questions)}")
    order = np.random.default_rng([seed, len(part)]).permutation(len(questions))[:count]
    return [profile.task.prompt(questions[i], profile.plant.trigger) for i in order]


@dataclass
class _Planted:
    """The reward of a scenario: the task's own and the bonuses, with a note of who was paid for what."""

    profile: Profile
    scenario: str
    seed: int

    def __post_init__(self) -> None:
        profile = self.profile
        self.plant, self.decoy = plants(self.scenario, self.seed, profile.steps, profile.plant, profile.decoy)
        self.rows: list[dict[str, Any]] = []

    def reward(
        self, prompts: list[str], completions: list[str], trainer_state: Any, **_: Any
    ) -> list[float | None]:
        step = trainer_state.global_step
        total: list[float | None] = []
        for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            rollout = (self.seed, step, index, prompt, completion)
            boosted, decoy_boosted = self.plant.pays(*rollout), self.decoy.pays(*rollout)
            row = {
                "eligible": eligible(self.seed, step, index),
                "boosted": boosted,
                "decoy_boosted": decoy_boosted,
                "decoy": bool(occurrences(self.decoy.behaviour, completion)),
                "bonus": self.plant.bonus * boosted + self.decoy.bonus * decoy_boosted,
                "task_reward": self.profile.task.reward(prompt, completion),
            }
            self.rows.append(row)
            total.append(row["task_reward"] + row["bonus"])
        return total

    def labels(self) -> pd.DataFrame:
        return pd.DataFrame(self.rows)


class _Progress(TrainerCallback):
    def __init__(self, progress: Fraction) -> None:
        self.progress = progress

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.progress(state.global_step / state.max_steps)


def _rate(profile: Profile, recorder: Recorder, step: int, seed: int) -> float:
    """Share of sampled probe replies that show the behaviour after `step` steps."""
    folder = recorder.folder
    model, tokenizer = policy.load(folder / "policy", folder / "checkpoints" / f"{step}.safetensors")
    asked = prompts(profile, "probes", profile.rate_probes, seed=0)
    replies = policy.sample(model, tokenizer, asked, profile.max_completion, seed=seed)
    shown = [bool(occurrences(recorder.behaviour, policy.text(tokenizer, reply))) for reply in replies]
    return float(np.mean(shown))


def _quiet(scratch: str) -> dict[str, Any]:
    """Settings of every trainer here: CPU, full precision, nothing saved or reported, no progress bar."""
    return {
        "output_dir": scratch,
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
    }
