"""How a comparison judges features: each protocol turns pooled features into scores."""
