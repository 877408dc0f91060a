"""A shop on temporalex_django: carts, orders, invoices, onboarding, inventory, event collector, batch."""
