"""The shop: products, stock, carts, and the six worked examples as workflows."""
