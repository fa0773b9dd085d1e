"""May a bundle act? Criteria, evidence from a shadow recording, and the certificate."""
