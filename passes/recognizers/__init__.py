"""What subgraphs mean: readers that several rules share."""
