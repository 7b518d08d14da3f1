"""Checkpoints of one attention kind as checkpoints of another: `python -m open_clip_linear convert`.

`state_dict` computes, `weights` reads and writes files, `features` measures how far a model moved, `command` is the
command line around them.
"""

from open_clip_linear.convert.state_dict import ConversionError, ConversionReport, convert_state_dict

__all__ = ["ConversionError", "ConversionReport", "convert_state_dict"]
