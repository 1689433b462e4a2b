"""LAMB and two Adams, learning rate, loss scale, accumulation."""
