"""The report's sections over results: a file for each kind of result that ``python -m evaluate`` writes.

A file has
    KIND, WRITER, FORMAT           what it is called, what writes it, and the newest form of it that is understood
    is_one(content) -> bool        whether a JSON object is such a result
    read(path, content)            the object as a typed record; raises KeyError, TypeError or ValueError
    section(records, name_of)      the records as HTML, every text of theirs escaped
``registry.py`` lists them in the order of the page. A new kind of result is a new file and a line there.
"""
