"""Views beside Postgres itself."""
