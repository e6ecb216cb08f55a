"""The SDK, and what the command line is made of."""
