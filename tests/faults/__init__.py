"""Real processes, real servers, real faults: crash points, fault cycles and a proxy between capture and Postgres."""
