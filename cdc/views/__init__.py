"""Views: topics whose rows are computed from other topics' rows, kept up change by change."""
