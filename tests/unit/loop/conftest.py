from tests.worlds.whole_turn import recorded, turn

__all__ = ["recorded", "turn"]
