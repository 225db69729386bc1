"""Runs: started, resumed, loaded, evaluated, exported."""
