"""What a network is trained for: its losses and its figures."""
