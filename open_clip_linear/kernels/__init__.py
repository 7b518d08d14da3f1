"""The fast forms of the linear kinds: `ops.py` is what they look like to PyTorch, `chunked.py` what they do."""
