"""The subcommands of ``python -m data_prep``, a file each.

A file has ``NAME`` (what is typed), ``HELP`` (a line), ``DESCRIPTION``, ``EXAMPLE``, ``add_arguments(parser)`` and
``run(args)``, which prints its result on stdout and raises DataError (exit code 1) or UsageError (2) with a sentence
for the user. It imports what only the work itself needs inside ``run``, so that ``--help`` answers without it.
"""
