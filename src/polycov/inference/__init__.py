"""Using a trained model: evaluate, predict, embed."""
