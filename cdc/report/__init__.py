"""Every fact about the parts as one value (``shape.py``), where the facts come from (``collector.py``, ``probe.py``, ``currentlog.py``), and what is wrong (``problems.py``)."""
