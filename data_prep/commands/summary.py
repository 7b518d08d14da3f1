"""What the builders of whole sets have in common in their summaries for a person."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def headline(output: Path, stats: Mapping[str, Any]) -> str:
    """Whether this call built the set."""
    return f"{output}: {'built' if stats['built'] else 'already built with these settings'}"


def left_out(stats: Mapping[str, Any]) -> list[str]:
    """A line with what the set does without, or none."""
    return [f"  left out: {', '.join(stats['failed'])}"] if stats["failed"] else []
