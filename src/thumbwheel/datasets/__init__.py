"""Turns feedback into training data: the data plan (`plan`), frozen datasets (`build`), their
shapes (`shapes/`) and their split (`split_assignment`)."""
