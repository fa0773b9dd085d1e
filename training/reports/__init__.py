"""Building blocks of HTML reports: the page and its pictures."""
