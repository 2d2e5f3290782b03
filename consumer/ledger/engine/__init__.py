"""Engine: the database, its time, its schema and migrations' bookkeeping."""
