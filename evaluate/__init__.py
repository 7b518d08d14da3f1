"""Evaluation of CLIP models, run as ``python -m evaluate`` from a checkout; docs/evaluation.md is its page.

``commands/`` holds a file a subcommand: its options, then its steps in order. What they are made of:

what is measured on   ``data/``: ``sets.py`` (the entries), ``read.py`` and the readers it chooses from
the model under test  ``models.py``
the towers            ``encode.py`` and ``decode.py`` (pictures), ``texts.py`` (prompts), ``ranks.py`` (the processes)
zero-shot             ``classifier.py``, ``classifier_cache.py``, ``zero_shot.py``, ``metrics.py``, ``result.py``,
                      ``predictions.py``, ``compare.py``
retrieval, probes     ``retrieval.py``, ``probe.py``
attention itself      ``looking/``
over several runs     ``scaling.py`` with ``power_law.py``; ``report.py`` with ``found.py``, ``sections/``, ``page.py``

``training`` imports it for evaluation inside a run; it never imports ``training``.
"""
