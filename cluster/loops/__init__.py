"""Control loops as child processes of the agent."""
