"""Episodes from agents that play, from decision records, from published logs; to and from Minari."""
