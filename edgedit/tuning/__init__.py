"""Which layout to use: measurements of a machine, a cost model over them, and the choice among legal layouts."""
