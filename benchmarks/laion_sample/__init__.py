"""`make laion-sample`: 2,000 rows of LAION-like metadata over a server that misbehaves, all the way to training.

    python -m benchmarks.laion_sample        # runs/laion-sample/result.json, and the table on the terminal

causes.py says what goes wrong, how often, and what has to come of it; rows.py makes the metadata; server.py, a process
of its own, answers and keeps a log of what it sent; account.py puts that log and what data_prep counted side by side,
row by row. About 3 minutes on two cores, nothing leaves the machine.
"""
