from pathlib import Path

import pytest

from training import settings

RECIPE = Path(__file__).parent.parent.parent / "configs" / "training" / "quickstart.toml"


def resolve(*words):
    return settings.resolve(settings.parser().parse_args([str(w) for w in words]))


def test_the_quickstart_recipe_resolves():
    resolved = resolve("--config", RECIPE)
    assert resolved.model.startswith("tiny-emoji-eq7")
    assert resolved.steps > 0


def test_options_override_the_recipe():
    resolved = resolve("--config", RECIPE, "--steps", 70, "--lr", "1e-5", "--warmup", 7)
    assert (resolved.steps, resolved.lr, resolved.warmup) == (70, 1e-5, 7)


def test_augmentation_words_are_literals():
    resolved = resolve("--config", RECIPE, "--aug-cfg", "scale=(0.3, 1.0)", "gray_scale_prob=0.2")
    assert resolved.aug_cfg == {"scale": (0.3, 1.0), "gray_scale_prob": 0.2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "tiny-emoji-eq9"], "unknown; nearest: tiny-emoji-eq7"),
        (["--steps", "0"], "steps must be at least 1, found 0"),
        (["--lr", "nan"], "lr must be at least 0, found nan"),
        (["--lr", "-1"], "lr must be at least 0"),
        (["--warmup", "99999"], r"warmup \(99999\) must not exceed steps"),
        (["--train-data", ""], "--train-data is missing"),
        (["--aug-cfg", "scales=1"], "unknown key 'scales'; did you mean 'scale'"),
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
        ("batchsize = 3", "unknown key 'batchsize'; did you mean 'batch_size'"),
        ("batch_size = 'many'", "batch_size must be int, found 'many'"),
        ("batch_size = true", "batch_size must be int"),
        ("precision = 'fp8'", "precision must be one of auto, fp32, amp_bf16"),
        ("aug_cfg = 3", "aug_cfg must be a table"),
        ("steps 3", "is not TOML"),
    ],
)
def test_a_wrong_recipe_is_refused_with_a_sentence(tmp_path, text, message):
    path = tmp_path / "recipe.toml"
    path.write_text(f'model = "tiny-emoji-eq7"\ntrain_data = "x"\noutput = "y"\n{text}\n')
    with pytest.raises(settings.SettingsError, match=message):
        resolve("--config", path, "--steps", 200)


def test_every_setting_has_help():
    text = settings.parser().format_help()
    assert "example:" in text
    for name in settings.Settings.__dataclass_fields__:
        assert "--" + name.replace("_", "-") in text
