"""Column policies: what of a column's values may reach the log, which columns wait for a decision, and what was decided before."""
