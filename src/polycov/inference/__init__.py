"""Using a trained model: evaluate, predict, embed, search; comparing features: neighbours, retrieval, episodes."""
