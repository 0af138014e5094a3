"""The sum of what a token's experts returned, each times its weight."""
