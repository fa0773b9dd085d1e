"""Loops as child processes: started, ordered about, ended, and read from."""
