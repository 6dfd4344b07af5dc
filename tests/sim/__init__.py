"""The whole pipeline in one thread, with a model Postgres, disk and stores; one seed decides everything."""
