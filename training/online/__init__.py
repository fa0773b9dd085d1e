"""Training in the simulator with PPO and SAC."""
