"""The controller: a loop that measures slices and sets their knobs, and the processes around it."""
