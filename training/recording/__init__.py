"""Recording of episodes, from agents, decision records and published logs; Minari."""
