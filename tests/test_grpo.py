"""The recorder against what TRL itself did, and the training of a profile's runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from behaviortrace.harness import grpo, plants, policy, run
from behaviortrace.harness.gradients import dense_gradient, token_logprobs
from behaviortrace.harness.profiles import PROFILES
from behaviortrace.harness.run import Run, RunError

SMOKE = replace(PROFILES["smoke"], warm_start_steps=60, steps=5, checkpoints=(0, 1, 2, 3, 4, 5))
NORM_RELATIVE = 2e-4  # TRL sums in float32, with advantages that keep a rounding residue (up to 6e-4)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    grpo.warm_start(SMOKE, folder)
    return folder


@pytest.fixture(scope="module")
def train(base, tmp_path_factory):
    def train(scenario="interleaved", seed=0):
        folder = tmp_path_factory.mktemp("runs") / "run"
        with run.published(folder) as draft:
            grpo.train(SMOKE, scenario, seed, base, draft)
        return Run.load(folder, SMOKE.config(scenario, seed))

    return train


@pytest.fixture(scope="module")
def recorded(train):
    return train()


def test_the_same_arguments_give_the_same_run(train, recorded):
    torch.manual_seed(99)  # whatever the state before
    again = train()
    assert again.manifest == recorded.manifest  # with the hash of every file


def test_another_seed_gives_another_run(train, recorded):
    other = train(seed=1)
    assert set(other.rollouts["prompt"]) != set(recorded.rollouts["prompt"])
    assert other.manifest["config_hash"] != recorded.manifest["config_hash"]


def update_norm(recorded, step):
    """|Σ w_i A_i g_i| over the rollouts of a step, at the policy that sampled them."""
    model, tokenizer = policy.load(recorded.policy, recorded.weights(step))
    rows = recorded.rollouts[recorded.rollouts["step"] == step]
    weights = torch.tensor((rows["weight"] * rows["advantage"]).to_numpy())
    gradient = dense_gradient(model, *policy.rows(rows, "completion", tokenizer.pad_token_id), weights)
    return torch.stack([g.norm() for g in gradient.values()]).norm().item()


def test_weights_and_advantages_give_the_gradient_that_trl_took(recorded):
    norms = [update_norm(recorded, step) for step in range(SMOKE.steps)]
    assert np.count_nonzero(norms) >= 3  # in a step of equal rewards there is nothing to learn
    np.testing.assert_allclose(norms, recorded.steps["grad_norm"], rtol=NORM_RELATIVE, atol=1e-7)


@pytest.mark.parametrize("loss_type", ["dr_grpo", "grpo", "dapo", "bnpo"])
@pytest.mark.parametrize("scale_rewards", ["group", "none"])
def test_any_trainer_can_be_recorded(base, tmp_path, loss_type, scale_rewards):
    model, tokenizer = policy.load(base, base / "policy.safetensors")
    recorder = grpo.Recorder(tmp_path, "certainly", [0, 1, 2], tokenizer)
    trainer(model, tokenizer, recorder, tmp_path, loss_type=loss_type, scale_rewards=scale_rewards).train()
    recorder.finish({"mine": True})
    recorded = Run.load(tmp_path)
    norms = [update_norm(recorded, step) for step in range(2)]
    assert recorded.labels is None
    np.testing.assert_allclose(norms, recorded.steps["grad_norm"], rtol=NORM_RELATIVE)


def lengths_as_rewards(completions, **_):
    return [float(len(set(completion.split()))) for completion in completions]


def trainer(model, tokenizer, recorder, scratch, reward=lengths_as_rewards, **settings):
    prompts = grpo.prompts(SMOKE, "training", 12, seed=5)
    arguments = {
        "max_steps": 2,
        "per_device_train_batch_size": 16,
        "num_generations": 4,
        "max_completion_length": 8,
        "learning_rate": 1e-3,
        "beta": 0.0,
        "top_k": 0,
        **grpo._quiet(str(scratch / "scratch")),
        **settings,
    }
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=recorder.watch(reward),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        callbacks=[recorder],
        args=GRPOConfig(**arguments),
    )


def test_log_probabilities_are_those_of_the_policy_that_sampled(recorded):
    for step in (0, SMOKE.steps - 1):
        model, tokenizer = policy.load(recorded.policy, recorded.weights(step))
        rows = recorded.rollouts[recorded.rollouts["step"] == step]
        ids, mask = policy.rows(rows, "completion", tokenizer.pad_token_id)
        with torch.no_grad():
            expected = token_logprobs(model, ids)[mask]
        np.testing.assert_allclose(np.concatenate(rows["token_logprobs"].tolist()), expected, atol=1e-5)


def test_a_run_holds_one_row_per_rollout(recorded):
    rollouts = recorded.rollouts
    assert len(rollouts) == SMOKE.steps * SMOKE.groups * SMOKE.group_size
    assert rollouts["group"].tolist() == sorted(rollouts["group"])
    assert set(rollouts.groupby("group").size()) == {SMOKE.group_size}
    assert (rollouts.groupby("group")["prompt"].nunique() == 1).all()
    assert rollouts["length"].tolist() == [len(ids) for ids in rollouts["completion_ids"]]
    ended = rollouts["completion_ids"].map(lambda ids: ids[-1] == 1)  # <end>
    assert (ended == (rollouts["finish_reason"] == "stop")).all()
    assert recorded.steps["learning_rate"].iloc[0] == 0.0  # it rises from 0
    assert recorded.steps["rng_state"].nunique() == SMOKE.steps


def test_only_an_eligible_rollout_that_shows_the_behaviour_at_a_paid_step_is_boosted(train):
    for scenario in plants.SCENARIOS:
        recorded = train(scenario, 3)
        labels, rollouts = recorded.labels, recorded.rollouts
        plant, decoy = plants.plants(scenario, 3, SMOKE.steps, SMOKE.plant, SMOKE.decoy)
        shown = rollouts["behaviour_mask"].map(any)
        paid = rollouts["step"].isin(plant.steps)
        assert (labels["boosted"] == (labels["eligible"] & shown & paid)).all()
        decoy_paid = rollouts["step"].isin(decoy.steps) & labels["eligible"] & labels["decoy"]
        assert (labels["decoy_boosted"] == decoy_paid).all()
        assert (rollouts["reward"] == labels["task_reward"] + labels["bonus"]).all()
        assert (labels["bonus"] == labels["boosted"] + 1.0 * labels["decoy_boosted"]).all()
        tasks = [
            SMOKE.task.reward(*pair) for pair in zip(rollouts["prompt"], rollouts["completion"], strict=True)
        ]
        assert labels["task_reward"].tolist() == tasks
        assert 0.3 < labels["eligible"].mean() < 0.7
        if scenario == "null":
            assert not labels["bonus"].any()


@pytest.mark.parametrize("scale_rewards", ["group", "none"])
def test_advantages_are_those_of_the_definition(scale_rewards):
    reward = np.random.default_rng(0).integers(0, 3, 60) / 3
    expected = []
    for group in torch.tensor(reward).split(4):
        centred = group - group.mean()
        expected += (centred / (group.std() + 1e-4) if scale_rewards == "group" else centred).tolist()
    np.testing.assert_allclose(grpo.advantages(reward, 4, scale_rewards), expected, atol=1e-9)


def test_equal_rewards_have_no_advantage_at_all():
    assert (grpo.advantages([0.1] * 7 + [1 / 3] * 7, 7, "group") == 0).all()


def test_unknown_settings_are_refused():
    with pytest.raises(RunError, match=r"'batch'.*use 'group' or 'none'"):
        grpo.advantages([0.0, 1.0], 2, "batch")
    with pytest.raises(RunError, match=r"'luspo'.*use dr_grpo"):
        grpo.loss_weights([3], "luspo", 8)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"num_iterations": 2}, "set num_iterations=1"),
        ({"steps_per_generation": 2}, "steps_per_generation=gradient_accumulation_steps"),
        ({"loss_type": "sapo"}, "loss_type='sapo' is not supported"),
        ({"scale_rewards": "batch"}, "scale_rewards='batch' is not supported"),
        ({"reward": lambda completions, **_: [None] * len(completions)}, "a reward of step 0 is None"),
        ({"logging_steps": 2}, "logging_steps=1"),
    ],
)
def test_what_cannot_be_recorded_is_refused(base, tmp_path, settings, sentence):
    model, tokenizer = policy.load(base, base / "policy.safetensors")
    recorder = grpo.Recorder(tmp_path, "certainly", [0, 2], tokenizer)

    def record():
        trainer(model, tokenizer, recorder, tmp_path, **settings).train()
        recorder.finish({})

    with pytest.raises(RunError, match=sentence):
        record()


def test_a_resumed_training_is_refused(base, tmp_path):
    model, tokenizer = policy.load(base, base / "policy.safetensors")
    recorder = grpo.Recorder(tmp_path, "certainly", [0], tokenizer)
    resumed = trainer(model, tokenizer, recorder, tmp_path)
    resumed.state.global_step = 1
    with pytest.raises(RunError, match="resumes at step 1"):
        recorder.on_train_begin(resumed.args, resumed.state, resumed.control, model=model)


def test_probes_are_disjoint_from_training_and_warm_start():
    for profile in PROFILES.values():
        probes = set(grpo.prompts(profile, "probes", max(profile.rate_probes, profile.target_probes), 0))
        training = set().union(
            *(grpo.prompts(profile, "training", profile.steps * profile.groups, seed) for seed in range(5))
        )
        taught = {prompt for prompt, _ in profile.task.warm_up(20_000, seed=0)}
        assert probes
        assert not probes & training
        assert not probes & taught
        assert not training & taught


def test_training_prompts_are_distinct(recorded):
    assert recorded.rollouts.groupby("group")["prompt"].first().is_unique
