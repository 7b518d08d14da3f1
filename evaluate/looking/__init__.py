"""What linear attention does with its keys: ``python -m evaluate dispersion`` and ``python -m evaluate attention``.

``kinds.py`` (each kind's weights written out for a few queries) and ``dispersion.py`` (how they fall as keys become
more); ``tower.py`` (the weights of a tower's own layers, row by row) and ``attention.py`` (where each looks). Both
measure shares |w|/Σ|w|, see ``shares.py``, so that weights that are signed or do not sum to 1 can stand beside others.
"""
