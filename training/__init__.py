"""Contrastive pretraining of OpenCLIP models on webdataset shards: `python -m training --help`."""
