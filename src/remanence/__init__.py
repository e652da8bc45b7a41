"""Learn from streams that change, and keep what was learned."""
