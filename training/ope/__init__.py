"""What a policy would be worth that has not acted yet, from episodes in which others did."""
