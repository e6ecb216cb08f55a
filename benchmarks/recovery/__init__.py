"""How long it takes from a fault until all ranks train again, on kind."""
