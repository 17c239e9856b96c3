"""What turns the wheel: cycles, triggers, decisions that wait for a person, running experiments."""
