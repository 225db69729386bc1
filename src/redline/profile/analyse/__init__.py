"""From a session to tables; units in column names, times exact in integer nanoseconds."""
