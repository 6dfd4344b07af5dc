"""Views kept up: their sources' changes from the log, through the view's kernel, back into the log by the inbox, each exactly once."""
