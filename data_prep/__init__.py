"""Makes the data sets that the other programs read: picture-and-caption shards with a manifest.

Run it from a checkout: `python -m data_prep --help`. Other rooms import `data_prep.manifest`, `data_prep.shards` and
`data_prep.atomic`; this package imports none of them.
"""
