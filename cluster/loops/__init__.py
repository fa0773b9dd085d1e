"""Loops as child processes: started, given their mode, ended, and read from."""
