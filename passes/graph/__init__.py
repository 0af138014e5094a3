"""What passes say about a graph, and how they change one: the vocabulary of all that follow."""
