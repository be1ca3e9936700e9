"""The paper's experiment: many methods, dimensions and seeds on the same pictures."""
