"""Published task sets, runs and comparisons, each in the form in which its authors published it."""
