"""Where the time of a training step goes: the parts of bert.profile."""
