"""The training loops, and what they do beside learning."""
