"""A shop that runs on temporalex_django: carts, onboarding, inventory, event collector, batch."""
