"""Guesses made up by hand, for tests of what is made of them."""

from pathlib import Path

import torch

from evaluate.data.pictures import Pictures, Place
from evaluate.data.read import Readied
from evaluate.encode import BadImage
from evaluate.zero_shot import Guesses, Measured


def folder_of(labels: list[int], names: list[str], columns: dict[str, list[int]] | None = None) -> Readied:
    """Pictures that lie nowhere."""
    places = [Place(Path("nowhere"), 0, 1)] * len(labels)
    keys = [f"folder/{number}.png" for number in range(len(labels))]
    ids = [f"id{index}" for index in range(len(names))]
    return Readied("", Pictures("root", ids, places, keys, labels), names, columns or {"set": list(range(len(names)))})


def measured_of(folder: Readied, best: dict[int, list[int]], bad: tuple[int, ...] = ()) -> Measured:
    """One set's guesses, by picture number; those without guesses are not in the set or `bad`."""
    numbers = [number for number in best if number not in bad]
    guesses = Guesses(
        torch.tensor(numbers),
        torch.tensor([folder.pictures.labels[number] for number in numbers]),
        torch.tensor([best[number] for number in numbers]),
        torch.tensor([[30.0 - place for place, _ in enumerate(best[number])] for number in numbers]),
        torch.zeros(len(numbers), dtype=torch.bool),
    )
    unread = [BadImage("folder", f"{number}.png", "broken") for number in bad]
    return Measured(folder, dict.fromkeys(folder.columns, guesses), unread, {}, 2.0)
