"""Tux Paint's stamps, a set of real pictures with English descriptions, from Debian's package of them."""
