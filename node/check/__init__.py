"""What traffic tells of a node: is it measured, do the knobs act?"""
