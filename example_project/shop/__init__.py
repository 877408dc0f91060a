"""The shop: products, stock, carts, orders, and the six worked examples as workflows."""
