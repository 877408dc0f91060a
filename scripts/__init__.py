"""Tools of the checkout. Nothing here is part of the installed package."""
