"""The recipes of launch/recipes: what they set, and what a launcher says of them."""

import math
import re
import shlex

import pytest
from launching import ROOT, launch

from rft.options import command

LAUNCHERS = {size: ROOT / f"launch/train_grpo_{size}.sh" for size in ("20b", "120b")}
PATHS = {"save_path", "ckpt_path"}


def dry_run(launcher, place, **environment):
    done = launch(launcher, place, DRY_RUN="1", CLUSTER="cpu", **environment)
    assert done.returncode == 0, done.stderr
    return done


def trained_with(done):
    """The options of the training command that a dry run has printed."""
    (line,) = (line for line in done.stdout.splitlines() if "openrlhf.cli.train_ppo_ray" in line)
    return vars(command.parse(shlex.split(line)))


@pytest.mark.parametrize("size", LAUNCHERS)
def test_a_launcher_says_which_recipe_runs_and_what_the_other_would_change(size, tmp_path):
    done = {name: dry_run(LAUNCHERS[size], tmp_path, RECIPE=name) for name in ("a26", "tuned")}
    assert trained_with(dry_run(LAUNCHERS[size], tmp_path)) == trained_with(done["a26"])
    options = {name: trained_with(run) for name, run in done.items()}
    differing = {k for k in options["a26"] if options["a26"][k] != options["tuned"][k]} - PATHS
    for name, other in (("a26", "tuned"), ("tuned", "a26")):
        (said,) = re.findall(rf"^recipe: {name}; RECIPE={other} would change: (.*)$", done[name].stderr, re.MULTILINE)
        changes = {change.removeprefix("no ").split()[0]: change for change in said.split(", ")}
        # Named besides are options that one of them leaves at the trainer's default.
        assert differing <= set(changes), differing - set(changes)
        before, after = (float(number) for number in changes["actor_learning_rate"].split()[1::2])
        assert (before, after) == (options[name]["actor_learning_rate"], options[other]["actor_learning_rate"])


@pytest.mark.parametrize("size", LAUNCHERS)
def test_tuned_is_one_on_policy_update_a_rollout_at_a_constant_rate(size, tmp_path):
    args = trained_with(dry_run(LAUNCHERS[size], tmp_path, RECIPE="tuned"))
    samples = args["rollout_batch_size"] * args["n_samples_per_prompt"]
    assert args["train_batch_size"] == samples and args["max_epochs"] == 1
    assert args["lr_scheduler"] == "constant_with_warmup"
    updates = args["max_samples"] // args["rollout_batch_size"]
    assert math.ceil(updates * args["lr_warmup_ratio"]) <= updates // 20
    assert args["init_kl_coef"] == 0 and not args["use_kl_loss"]
    assert args["lora_alpha"] == args["lora_rank"]


@pytest.mark.parametrize("size", LAUNCHERS)
def test_low_effort_is_the_short_form_of_tuned(size, tmp_path):
    usual, low = (trained_with(dry_run(LAUNCHERS[size], tmp_path, RECIPE="tuned", EFFORT=e)) for e in ("medium", "low"))
    assert usual == trained_with(dry_run(LAUNCHERS[size], tmp_path, RECIPE="tuned"))
    differing = {name: (usual[name], low[name]) for name in usual if usual[name] != low[name]}
    assert differing == {"generate_max_len": (8192, 4096), "reasoning_effort": ("medium", "low")}


@pytest.mark.parametrize(
    "more", [{"EFFORT": "high", "RECIPE": "tuned"}, {"EFFORT": "low"}, {"EFFORT": "low", "RECIPE": "a26"}]
)
def test_an_effort_that_no_recipe_has_is_refused(more, tmp_path):
    done = launch(LAUNCHERS["20b"], tmp_path, **more)
    assert done.returncode == 1 and not done.stdout and f"found:  EFFORT={more['EFFORT']}, RECIPE=" in done.stderr
    assert "wanted: RECIPE=tuned with EFFORT=low" in done.stderr and "repair: unset EFFORT" in done.stderr


@pytest.mark.parametrize(
    ("launcher", "recipe", "wanted"),
    [
        ("20b", "a27", "wanted: one of a26 tuned"),
        ("20b", "../models/tiny", "wanted: one of a26 tuned"),
        ("120b", "A26", "wanted: one of a26 tuned"),
        ("20b_a27", "tuned", "wanted: RECIPE=a26, or none"),
        ("20b_a28a", "tuned", "wanted: RECIPE=a26, or none"),
    ],
)
def test_a_recipe_that_a_launcher_does_not_have_is_refused(launcher, recipe, wanted, tmp_path):
    done = launch(ROOT / f"launch/train_grpo_{launcher}.sh", tmp_path, RECIPE=recipe)
    assert done.returncode == 1 and not done.stdout
    assert f"found:  RECIPE={recipe}\n" in done.stderr and wanted in done.stderr and "repair: " in done.stderr
    assert not (tmp_path / "run").exists()
