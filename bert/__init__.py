"""The training itself: model, loss, optimizer, one step, the loop, checkpoints."""
