"""Every byte of everything that is kept or received is damaged: the same data, a clean cut at the tail, or our own error comes out."""
