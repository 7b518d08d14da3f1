"""What is evaluated on: which sets there are (`sets.py`); their pictures, classes and captions, read and checked."""
