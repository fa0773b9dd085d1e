"""Packets sent through UPFs that somebody else runs: do they arrive, and where are they lost?"""
