"""Checks of what ovspec promises, on the user's model and machine."""
