"""How hot loops are compiled (``jit.py``, ``cache.py``), and what several of them share."""
