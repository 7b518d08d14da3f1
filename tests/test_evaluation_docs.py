"""docs/evaluation.md: every command in it is one that the program accepts, and its table of data sets is whole."""

import re
import shlex
from pathlib import Path

from torch.distributed.run import get_args_parser

from evaluate.__main__ import parser
from evaluate.data.sets import DATASETS

PAGE = (Path(__file__).parents[1] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def commands():
    """The words after `-m evaluate`, through torchrun's own parser where it starts them."""
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            if words and words[0] == "torchrun":
                launched = get_args_parser().parse_args(words[1:])
                assert (launched.module, launched.training_script) == (True, "evaluate")
                yield launched.training_script_args
            elif words:
                assert words[:3] == ["python", "-m", "evaluate"]
                yield words[3:]


def test_every_command_is_accepted():
    found = [parser().parse_args(words).subcommand for words in commands()]
    assert set(found) == {"zero-shot", "compare", "retrieval", "probe", "dispersion", "attention", "report"}


def test_every_data_set_is_in_the_table():
    named = set(re.findall(r"`([\w./-]+)`", "".join(re.findall(r"^\| `.*$", PAGE, re.MULTILINE))))
    assert set(DATASETS) <= named
