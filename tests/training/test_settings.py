import json
from pathlib import Path

import open_clip
import pytest
from torch.distributed.run import get_args_parser

from training import command_line, settings

RECIPE = Path(__file__).parent.parent.parent / "configs" / "training" / "quickstart.toml"


def resolve(*words):
    return command_line.resolve(command_line.parser().parse_args([str(w) for w in words]))


def test_the_quickstart_recipe_resolves():
    resolved = resolve("--config", RECIPE)
    assert resolved.model.startswith("tiny-emoji-eq7")
    assert resolved.max_steps > 0


def test_options_override_the_recipe():
    resolved = resolve("--config", RECIPE, "--max-steps", 70, "--lr", "1e-5", "--warmup", 7)
    assert (resolved.max_steps, resolved.lr, resolved.warmup) == (70, 1e-5, 7)


def test_augmentation_words_are_literals():
    resolved = resolve("--config", RECIPE, "--aug-cfg", "scale=(0.3, 1.0)", "gray_scale_prob=0.2")
    assert resolved.aug_cfg == {"scale": (0.3, 1.0), "gray_scale_prob": 0.2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "tiny-emoji-eq9"], "is unknown .did you mean 'tiny-emoji-eq[47]"),
        (["--max-steps", "-1"], "max_steps must be at least 0, found -1"),
        (["--max-steps", "0"], "--max-steps or as --epochs, found neither"),
        (["--epochs", "2", "--max-steps", "9", "--warmup", "1"], "--max-steps or as --epochs, found both"),
        (["--lr", "nan"], "lr must be a finite number, found nan"),
        (["--lr", "-1"], "lr must be at least 0"),
        (["--warmup", "99999"], r"warmup \(99999\) and cooldown \(0\) must not exceed max_steps \(840\)"),
        (["--train-data", ""], "--train-data is missing"),
        (["--lr", "inf"], "lr must be a finite number"),
        (["--beta1", "1.5"], "beta1 must be less than 1, found 1.5"),
        (["--seed", "99999999999999999999"], "seed must be less than 2147483648"),
        (["--opt", "timm/nmuonn"], "did you mean 'timm/nmuon'"),
        (["--opt", "timm"], "--opt 'timm' is unknown"),
        (["--opt", "timm/sgd", "--beta2", "0.98"], "--eps does nothing with --opt timm/sgd.*found 1e-07.*at 1e-06"),
        (["--opt", "timm/sgd", "--eps", "1e-6"], "--beta2 does nothing with --opt timm/sgd.*found 0.95.*at 0.98"),
        (["--opt", "timm/adan", "--beta1", "0.8", "--beta2", "0.98"], "--beta1 does nothing with --opt timm/adan"),
        (["--opt", "timm/adafactor"], "--beta2 does nothing with --opt timm/adafactor"),
        (["--model", "coca_ViT-B-32"], "is a CoCa model"),
        (["--distill-model", "tiny-emoji-softmax"], "--distill-model and --distill-pretrained go together"),
        (["--cooldown", "5"], "const-cooldown and --cooldown STEPS go together, found cosine and 5"),
        (["--lr-cooldown-end", "1e-5"], "--lr-cooldown-end does nothing without --lr-scheduler const-cooldown"),
        (["--lr-cooldown-power", "2"], "--lr-cooldown-power does nothing without --lr-scheduler const-cooldown"),
        (
            ["--shuffle-buffer", "9"],
            "--shuffle-buffer does nothing with --unique-key.*found 9; leave it out",
        ),
        (["--wandb-project-name", "mine"], "--wandb-project-name does nothing without --report-to wandb"),
        (["--zeroshot-frequency", "2"], "--zeroshot-frequency does nothing without --imagenet-val or --val-data"),
        (["--save-every-minutes", "0"], "are both 0: a killed run would have no checkpoint"),
        (["--siglip", "--local-loss"], "--siglip has neither"),
        (["--lock-image-unlocked-groups", "2"], "does nothing without --lock-image"),
        (["--val-data", "x", "--zeroshot-frequency", "0"], "leaves out the evaluation"),
        (["--report-to", "tensorboard,mlflow"], "--report-to 'mlflow' is unknown"),
        (["--force-image-size", "0"], "one or two sizes in pixels"),
        (["--force-image-size", "100000"], "one or two sizes in pixels, each from 1 to 8192, found .100000"),
        (["--max-steps", "99999999999999999999"], "max_steps must be less than 2147483648"),
        (["--max-steps", "2", "--epochs", "1e300"], "epochs must be less than 2147483648"),
        (["--name", "/tmp/x"], "--name must be a plain name.*found '/tmp/x'; give the path before it as --output"),
        (["--name", ".."], "--name must be a plain name"),
        (["--val-data", str(RECIPE), "--zeroshot-frequency", "1"], "--val-data must be a manifest.jsonl or its folder"),
        (["--report-to", "tensorboard,"], "--report-to '' is unknown; known: tensorboard, wandb"),
        (
            ["--model", "ViT-S-16-eq7", "--lock-image", "--lock-image-unlocked-groups", "15"],
            "--lock-image-unlocked-groups must be at most 14 with --model ViT-S-16-eq7, .*found 15",
        ),
        (["--model", "RN50", "--lock-image", "--lock-image-unlocked-groups", "1"], "must be at most 0 with"),
        (["--model", "ViT-S-16-eq7", "--lock-text", "--lock-text-unlocked-layers", "15"], "must be at most 14 with"),
        (["--force-image-size", "1", "2", "3"], "one or two sizes in pixels"),
        (["--model-configs", "nowhere"], "nowhere: no such folder"),
        (["--aug-cfg", "scale=(0.9,0.1)"], "cannot be used by OpenCLIP: ."),
        (["--aug-cfg", "gray_scale_prob=2"], "cannot be used by OpenCLIP: ."),
        (["--aug-cfg", "scale=foo"], "cannot be used by OpenCLIP"),
        (["--aug-cfg", "scale=(2,)"], "cannot be used by OpenCLIP"),
        (["--aug-cfg", "scales=1"], "unknown key 'scales' .did you mean 'scale'"),
        (["--aug-cfg", "scale"], "write key=value"),
        (["--config", "nowhere.toml"], "nowhere.toml: No such file"),
    ],
)
def test_a_wrong_setting_is_refused_with_a_sentence(words, message):
    with pytest.raises(settings.SettingsError, match=message):
        resolve("--config", RECIPE, *words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batchsize = 3", "unknown key 'batchsize' .did you mean 'batch_size'"),
        ("batch_size = 'many'", "batch_size must be int, found 'many'"),
        ("batch_size = true", "batch_size must be int"),
        ("precision = 'fp8'", "precision must be one of auto, fp32, amp_bf16, amp"),
        ("aug_cfg = 3", "aug_cfg must be a table"),
        ("max_steps 3", "is not TOML"),
        ("fsdp = 1", "fsdp must be bool, found 1"),
    ],
)
def test_a_wrong_recipe_is_refused_with_a_sentence(tmp_path, text, message):
    path = tmp_path / "recipe.toml"
    path.write_text(f'model = "tiny-emoji-eq7"\ntrain_data = "x"\noutput = "y"\n{text}\n')
    with pytest.raises(settings.SettingsError, match=message):
        resolve("--config", path, "--max-steps", 200)


def test_a_users_own_config_can_be_named(tmp_path):
    config = open_clip.get_model_config("tiny-emoji-eq7")
    (tmp_path / "my-own-eq7.json").write_text(json.dumps(config))
    resolved = resolve("--config", RECIPE, "--model-configs", tmp_path, "--model", "my-own-eq7")
    assert resolved.model == "my-own-eq7"


def test_every_setting_has_help():
    text = command_line.parser().format_help()
    assert "example:" in text
    for name in settings.Settings.__dataclass_fields__:
        assert "--" + name.replace("_", "-") in text


def test_switches_can_be_turned_off_and_sizes_given():
    resolved = resolve("--config", RECIPE, "--no-gather-with-grad", "--fsdp", "--force-image-size", 48, 64)
    assert (resolved.gather_with_grad, resolved.fsdp, resolved.force_image_size) == (False, True, [48, 64])


def test_no_option_is_a_beginning_of_one_of_torchruns():
    """torchrun takes an ambiguous beginning of its own options for an error wherever it stands."""
    own = {word for action in get_args_parser()._actions for word in action.option_strings}
    ours = {word for action in command_line.parser()._actions for word in action.option_strings if word[:2] == "--"}
    clashing = {ours_: [word for word in own if word.startswith(ours_)] for ours_ in ours - {"--help"}}
    assert not {word: many for word, many in clashing.items() if many}


def test_a_list_without_a_number_is_refused(capsys):
    with pytest.raises(SystemExit):
        resolve("--config", RECIPE, "--force-image-size")
    assert "--force-image-size: expected at least one argument" in capsys.readouterr().err


def test_what_something_hears_or_nothing_is_asked_of_is_accepted():
    cooldown = ("--lr-scheduler", "const-cooldown", "--cooldown", 9, "--lr-cooldown-power", 2)
    resolve(
        "--config", RECIPE, *cooldown, "--zeroshot-frequency", 0, "--save-every-minutes", 0, "--save-every-steps", 5
    )
    resolve("--config", RECIPE, "--unique-key", "", "--shuffle-buffer", 9, "--opt", "timm/lion", "--eps", "1e-6")
    resolve("--config", RECIPE, "--opt", "timm/sgd", "--beta2", 0.98, "--eps", "1e-6")


def test_a_length_on_the_command_line_takes_the_place_of_the_recipes():
    resolved = resolve("--config", RECIPE, "--epochs", 2)
    assert (resolved.epochs, resolved.max_steps) == (2.0, 0)
