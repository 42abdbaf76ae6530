"""Work of this package that the executors of a cluster do: writing slices, and downloading them."""
