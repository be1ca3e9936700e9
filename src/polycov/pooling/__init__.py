"""Second-order pooling with torch alone: moments, functions, vectors, and the pools built from them."""
