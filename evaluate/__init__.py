"""Evaluation of CLIP models, run as ``python -m evaluate`` from a checkout.

Read in this order: ``data/sets.py`` (what is measured), ``data/emoji.py`` (reading it), ``models.py`` (the model under
test), ``zero_shot.py`` (the protocol), ``metrics.py`` (the figures), ``result.py`` (the JSON), then ``report.py`` and
the files it uses: ``runs.py``, ``gallery.py``, ``charts.py``, ``page.py``. Scaling laws over runs stand apart:
``scaling.py``. Shared by the ranks of a run:
``ranks.py``, ``encode.py``, ``imagenet.py``, ``data/pairs.py``, ``retrieval.py``.

The package may be imported by ``training`` for in-loop evaluation; it imports ``open_clip_linear`` and ``data_prep``
and never ``training``.
"""
