"""The subcommands of ``python -m evaluate``, a file each.

A file has ``NAME`` (what is typed), ``HELP`` (a line), ``DESCRIPTION``, ``EXAMPLE``, ``add_arguments(parser)`` and
``run(args, argv)``, which raises RefusedError with a sentence for the user. It imports torch and the work itself inside
``run``, so that ``--help`` and a wrong command line answer at once. ``options.py`` has what several of them share.
"""
