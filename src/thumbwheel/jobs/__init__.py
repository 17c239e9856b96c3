"""Long work that survives anything: jobs in a table, workers that do them, schedules."""
