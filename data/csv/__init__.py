"""Reading CSV of any size, and saying what is wrong in it."""
